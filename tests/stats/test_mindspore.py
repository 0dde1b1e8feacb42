"""MindSpore has an environment of its own, ``.venv-mindspore`` beside this one: it needs numpy < 2."""

import os
import re
import subprocess
from pathlib import Path

import msmon_stats

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".venv-mindspore" / "bin" / "python"


def test_conformance_in_the_environment_with_mindspore():
    assert PYTHON.exists(), f"{PYTHON} is missing; make venv makes it"
    source = str(Path(msmon_stats.__file__).parent.parent)
    # The options of this project's pytest are for plugins that are not installed there.
    options = ["-q", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        [str(PYTHON), "-m", "pytest", *options, str(HERE / "mindspore_conformance.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=500,
        cwd=HERE.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 90
