"""The GPU kernels: interpreted on the CPU, and compiled for GPUs that need not be there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", minversion="3.0", reason="older ones do nothing without a GPU")


@pytest.mark.parametrize("chosen", ["Float32", "not Float32"])
def test_interpreted_kernels_pass_the_conformance_tests(chosen):
    # Triton decides at its import whether it interprets, so this needs a process of its own.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", chosen, str(Path(__file__).parent / "interpreted_triton.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 40
    assert "skipped" not in done.stdout


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("gpu", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)], ids=str)
def test_kernels_compile_for_gpus(gpu, tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from msmon_stats.torch import triton_kernels, triton_rows

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = ("BLOCK", "NARROW", "WIDTH", "ITEMSIZE", "STEP")
    rows = {"eps": "*fp64", "rows": "*fp64", "places": "*i64", **dict.fromkeys(names, "constexpr")}
    options = {"BLOCK": triton_kernels._BLOCK, "NARROW": True, "WIDTH": 8, "ITEMSIZE": 0, "STEP": 1}
    wide = {**options, "WIDTH": 10, "STEP": -(2**60) + 1}
    sources = [
        ASTSource(
            fn=triton_kernels._one_tensor,
            signature={"pointer": pointer, "size": "i64", "piece": "i64", "powers": "*i64", **rows},
            constexprs=constexprs,
        )
        for pointer, constexprs in (
            ("*bf16", options),
            ("*fp64", {**options, "NARROW": False}),
            ("*bf16", {**wide, "ITEMSIZE": 2}),
            ("*fp64", {**wide, "ITEMSIZE": 8, "NARROW": False}),
            ("*i8", {**wide, "ITEMSIZE": 1}),
        )
    ]
    sources += [
        ASTSource(
            fn=triton_kernels._many_tensors,
            signature={"table": "*i64", "DTYPE": "constexpr", **rows},
            constexprs={"DTYPE": triton_kernels.TYPES["float32"], **constexprs},
        )
        for constexprs in (options, {**wide, "ITEMSIZE": 4})
    ]
    sources += [
        ASTSource(
            fn=triton_kernels._merge,
            signature={
                "rows": "*fp64",
                "bounds": "*i64",
                "out": "*fp64",
                **dict.fromkeys(("BLOCK", "WIDTH", "COLUMNS"), "constexpr"),
            },
            constexprs={"BLOCK": 128, "WIDTH": width, "COLUMNS": columns},
        )
        for width, columns in ((8, 8), (10, 16))
    ]
    rows = {"limit": "*fp32", "numbers": "*fp32", "words": "*i64", "places": "*i64", "count": "i32"}
    rows |= {"ROW": "constexpr", "ITEMSIZE": "constexpr"}
    sources += [
        ASTSource(
            fn=triton_rows._one_tensor,
            signature={"pointer": pointer, "size": "i64", **rows},
            constexprs={"ROW": triton_rows.ROW, "ITEMSIZE": itemsize},
        )
        for pointer, itemsize in (("*bf16", 0), ("*fp32", 0), ("*bf16", 2), ("*fp32", 4))
    ]
    sources += [
        ASTSource(
            fn=triton_rows._many_tensors,
            signature={"table": "*i64", "DTYPE": "constexpr", **rows},
            constexprs={"DTYPE": triton_kernels.TYPES["bfloat16"], "ROW": triton_rows.ROW, "ITEMSIZE": itemsize},
        )
        for itemsize in (0, 2)
    ]
    for source in sources:
        compiled = triton.compile(source, target=GPUTarget(*gpu))
        assert compiled.asm["cubin" if gpu[0] == "cuda" else "hsaco"]
        if source.fn.fn.__module__ == triton_rows.__name__:
            assert "f64" not in compiled.asm["ttir"]


@pytest.mark.parametrize(("slow", "first"), [(False, "triton"), (True, "float32")])
def test_a_device_that_is_slow_in_float64_gets_float32(slow, first, monkeypatch):
    from msmon_stats.torch import kernels

    for name in ("has_float64", "runs_triton", "_triton_works"):
        monkeypatch.setattr(kernels, name, lambda kind: True)
    monkeypatch.setattr(kernels, "_is_slow_in_float64", lambda kind: slow)
    usable = kernels.usable_kernels.__wrapped__("cuda")
    assert usable[0] == first
    assert sorted(usable) == ["float32", "operators", "triton"]
