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
    rows = {"eps": "*fp64", "rows": "*fp64", "BLOCK": "constexpr", "NARROW": "constexpr"}
    sources = [
        ASTSource(
            fn=triton_kernels._one_tensor,
            signature={"pointer": pointer, "size": "i64", "piece": "i64", **rows},
            constexprs={"BLOCK": triton_kernels._BLOCK, "NARROW": narrow},
        )
        for pointer, narrow in (("*bf16", True), ("*fp64", False))
    ]
    sources += [
        ASTSource(
            fn=triton_kernels._many_tensors,
            signature={"table": "*i64", "DTYPE": "constexpr", **rows},
            constexprs={"DTYPE": triton_kernels.TYPES["float32"], "BLOCK": triton_kernels._BLOCK, "NARROW": True},
        ),
        ASTSource(
            fn=triton_kernels._merge,
            signature={"rows": "*fp64", "bounds": "*i64", "out": "*fp64", "BLOCK": "constexpr"},
            constexprs={"BLOCK": 128},
        ),
    ]
    rows = {"limit": "*fp32", "numbers": "*fp32", "count": "i32", "ROW": "constexpr"}
    sources += [
        ASTSource(
            fn=triton_rows._one_tensor,
            signature={"pointer": pointer, "size": "i64", **rows},
            constexprs={"ROW": triton_rows.ROW},
        )
        for pointer in ("*bf16", "*fp32")
    ]
    sources.append(
        ASTSource(
            fn=triton_rows._many_tensors,
            signature={"table": "*i64", "DTYPE": "constexpr", **rows},
            constexprs={"DTYPE": triton_kernels.TYPES["bfloat16"], "ROW": triton_rows.ROW},
        )
    )
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
