"""`import msmon` imports no framework; `TrainerMon` is found for the one that the program uses."""

import os
import subprocess
import sys
import types
from importlib.util import find_spec

import pytest

import msmon
import msmon_io
from msmon.framework import chosen_module

ISOLATED = """
import sys
{first}
import msmon, msmon.config, msmon.cli
dir(msmon)
assert msmon.cli.main(["--help"]) == 0
found = [name for name in ("torch", "mindspore", "tensorboard", "pyarrow", "pandas") if name in sys.modules]
assert not found, found
"""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def python(code, *args):
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=dict(os.environ))


@needs_torch
def test_no_framework_is_imported():
    done = python(ISOLATED.format(first=""))
    assert done.returncode == 0, done.stderr
    # The twin: the same check sees a framework that is there.
    twin = python(ISOLATED.format(first="import torch"))
    assert twin.returncode == 1
    assert "AssertionError: ['torch'" in twin.stderr


@needs_torch
def test_the_class_of_the_imported_or_else_the_installed_framework():
    code = """
import sys
if sys.argv[1] == "first": import torch
from msmon import TrainerMon
import msmon.pytorch
assert TrainerMon is msmon.pytorch.TrainerMon
"""
    for order in ("first", "not"):
        done = python(code, order)
        assert done.returncode == 0, done.stderr


def test_the_converter_is_the_one_of_msmon_io():
    assert msmon.csv2tensorboard_by_step is msmon_io.csv2tensorboard_by_step


@pytest.mark.parametrize(
    ("imported", "chosen"),
    [
        (["torch"], "msmon.pytorch"),
        (["mindspore"], "msmon.mindspore"),
        (["mindspore", "torch"], "msmon.pytorch"),
    ],
)
def test_imported_frameworks_come_first(monkeypatch, imported, chosen):
    for name in ("torch", "mindspore"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert chosen_module() == chosen


def test_no_framework_at_all():
    code = "import sys; sys.modules['torch'] = sys.modules['mindspore'] = None; from msmon import TrainerMon"
    done = python(code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: msmon.TrainerMon needs PyTorch or MindSpore, and neither is installed: "
        "pip install 'msmon[torch]' or pip install 'msmon[mindspore]'"
    )


def test_public_names():
    assert {"TrainerMon", "csv2tensorboard_by_step", "__version__"} <= set(dir(msmon))
    with pytest.raises(AttributeError, match="module 'msmon' has no attribute 'TrainerMonitor'"):
        msmon.TrainerMonitor  # noqa: B018
