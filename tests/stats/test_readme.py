"""The examples of the README and of the docstrings run, also where only attrs and numpy are installed."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import attr
import numpy as np
import pytest
import torch

import msmon_stats

PACKAGE = Path(__file__).parents[2] / "packages" / "msmon-stats"
EXAMPLES = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("checkpoint.npz", weight=np.array([[3.0, -4.0]], dtype=np.float32), bias=np.array([0.0, np.nan]))


@pytest.mark.usefixtures("checkpoint")
def test_summary_of_a_checkpoint(capsys):
    assert len([line for line in EXAMPLES[0].splitlines() if line]) == 5
    exec(EXAMPLES[0], {})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "('weight', {'norm': 5.0, 'max': 3.0, 'nans': 0.0})",
        "('bias', {'norm': nan, 'max': nan, 'nans': 1.0})",
    ]


@pytest.mark.usefixtures("checkpoint")
def test_summary_with_nothing_but_attrs_and_numpy(tmp_path):
    pytest.importorskip("hatch")
    # A wheel, as it is published, in a folder with the two packages that it requires; -S and -I hide all others.
    wheel = tmp_path / "dist"
    subprocess.run(
        [sys.executable, "-m", "hatch", "build", "-t", "wheel", str(wheel)],
        cwd=PACKAGE,
        check=True,
        capture_output=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*command, *map(str, wheel.glob("*.whl"))], check=True, capture_output=True)
    installed = Path(attr.__file__).parents[1]
    for name in ("attr", "attrs", "numpy", "numpy.libs"):
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    program = f"import sys; sys.path.append({str(site)!r})\n{EXAMPLES[0]}\nprint('llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "('weight', {'norm': 5.0, 'max': 3.0, 'nans': 0.0})", done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_fingerprint_as_it_is_defined():
    exec(EXAMPLES[1], {})


def test_training_step():
    model = torch.nn.Linear(2, 1, bias=False)
    model(torch.tensor([[3.0, -4.0]])).sum().backward()
    names = {"model": model}
    exec(EXAMPLES[2], names)
    assert names["handles"] == [0]
    assert names["rows"].tolist() == [[5.0, 3.0]]


def test_every_statistic_and_call_is_in_the_readme():
    text = (PACKAGE / "README.md").read_text()
    for name in (*msmon_stats.OPS, *msmon_stats.KERNELS, *msmon_stats.__all__):
        if name not in ("KERNELS", "OPS"):
            assert name in text, name


def test_docstrings():
    for module in pkgutil.walk_packages(msmon_stats.__path__, "msmon_stats."):
        if "mindspore" in module.name or "_triton" in module.name:
            continue
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
