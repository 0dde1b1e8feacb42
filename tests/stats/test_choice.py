"""Which kernel is used, and how to force one."""

import sys

import numpy as np
import pytest
import torch

from msmon_stats import KERNELS, choice, partial
from msmon_stats.torch import PartialBuffer, operators, partials


@pytest.fixture
def operator_calls(monkeypatch):
    calls = []
    original = operators.accumulate
    monkeypatch.setattr(operators, "accumulate", lambda *arguments: (calls.append(1), original(*arguments)))
    return calls


def test_the_fastest_one_is_the_default(operator_calls):
    assert KERNELS == ("operators", "cpu", "triton", "float32")
    partial(torch.ones(3))
    PartialBuffer().measure([torch.ones(3)], 1e-8)
    assert operator_calls == []


def test_forced_by_an_argument(operator_calls):
    partial(torch.ones(3), kernel="operators")
    PartialBuffer(kernel="operators").measure([torch.ones(3)], 1e-8)
    assert len(operator_calls) == 2


def test_forced_by_the_environment(operator_calls, monkeypatch):
    monkeypatch.setenv("MSMON_KERNEL", "operators")
    partial(torch.ones(3))
    PartialBuffer().measure([torch.ones(3)], 1e-8)
    partial(torch.ones(3), kernel="cpu")
    assert len(operator_calls) == 2
    monkeypatch.setenv("MSMON_KERNEL", "gpu")
    with pytest.raises(ValueError, match=r"\$MSMON_KERNEL is 'gpu'; allowed: operators, cpu, triton, float32"):
        partial(torch.ones(3))
    monkeypatch.setenv("MSMON_KERNEL", "")
    partial(torch.ones(3))


def test_a_kernel_that_cannot_read_the_values():
    with pytest.raises(ValueError, match="kernel is 'triton', which cannot be used here; allowed: cpu, operators"):
        partial(np.ones(3), kernel="triton")


@pytest.fixture
def _forgotten():
    """Choose anew, and forget the choice afterwards."""
    known = (choice.has_cpu_kernel, choice.has_triton, partials.usable_kernels, partials.runs_triton)
    for cached in known:
        cached.cache_clear()
    yield
    for cached in known:
        cached.cache_clear()


@pytest.mark.usefixtures("_forgotten")
def test_without_llvmlite(monkeypatch, operator_calls):
    find = choice.importlib.util.find_spec
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: None if name == "llvmlite" else find(name))
    assert partial(torch.tensor([3.0, -4.0])).tolist() == [2, 0, 0, 0, -4, 3, -1, 25]
    assert len(operator_calls) == 1
    assert partial(np.array([3.0, -4.0])).tolist() == [2, 0, 0, 0, -4, 3, -1, 25]
    with pytest.raises(ValueError, match=r"pip install 'msmon-stats\[cpu\]' brings it"):
        partial(np.ones(3), kernel="cpu")


@pytest.mark.usefixtures("_forgotten")
def test_kernels_that_do_not_compile_are_replaced_and_reported(monkeypatch, operator_calls, caplog):
    from msmon_stats import cpu

    def fail(dtypes):
        raise OSError("no executable memory")

    monkeypatch.setattr(cpu, "warm_up", fail)
    assert partial(torch.ones(3))[6] == 3.0
    assert partial(torch.ones(4))[6] == 4.0
    assert len(operator_calls) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the compiled CPU kernels do not work here" in caplog.text
    assert "no executable memory" in caplog.text


@pytest.mark.usefixtures("_forgotten")
def test_triton_that_does_not_work_is_replaced_and_reported(monkeypatch, caplog):
    # There is no GPU: making a tensor on it fails, as a missing compiler would.
    monkeypatch.setattr(partials, "has_triton", lambda: True)
    monkeypatch.setattr(partials, "has_float64", lambda kind: True)
    assert partials.usable_kernels("cuda") == ("float32", "operators")
    assert "the Triton kernels do not work here" in caplog.text


def test_imports_no_framework():
    import subprocess

    program = (
        "import sys, numpy, msmon_stats\n"
        "from msmon_stats import summarize\n"
        "assert summarize(numpy.ones(4), ['norm'])['norm'] == 2.0\n"
        "{}"
        "print(sorted({{'torch', 'mindspore', 'triton'}} & set(sys.modules)))"
    )
    loaded = [
        subprocess.run([sys.executable, "-c", program.format(extra)], capture_output=True, text=True, check=True).stdout
        for extra in ("", "import torch\n")
    ]
    assert loaded == ["[]\n", "['torch']\n"]
