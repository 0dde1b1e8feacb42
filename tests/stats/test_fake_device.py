"""Statistics and training on a device without float64, which is made of Python: see `fake_device.py`.

With `-s` it prints what measuring costs.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.9", reason="older ones have no devices made of Python")


@pytest.mark.parametrize(("name", "least"), [("on_fake_device", 185), ("on_fake_device_training", 7)])
def test_on_a_fake_device(name, least):
    # The device changes torch for good, so this needs a process of its own.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", str(Path(__file__).with_name(f"{name}.py"))],
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print("\n| with the stand-in device | before | at most | now |")
    print(*re.findall(r"^\|.*\|$", done.stdout, flags=re.MULTILINE), sep="\n")
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
