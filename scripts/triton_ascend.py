"""Run the tests of the kernel in float32 with triton-ascend, in its interpreter: on the CPU, without an Ascend device.

python scripts/triton_ascend.py [--version 3.2.0] [pytest arguments]

triton-ascend brings a package `triton` of its own, which cannot be beside another one. So it goes into a folder of its
own, together with what it needs and does not say, and is found before the installed ones. Everything else, torch
included, is that of the environment in which this runs. Where pip cannot have it, that is said, and nothing is run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# numpy 2.4 makes no number of an array with one element any more, which this interpreter asks for.
NEEDED = ("pybind11", "numpy<2.4")
# It refuses float64, as the devices do, and takes a tenth of a second for a row, so that single tests take a minute.
TESTS = ("tests/stats/interpreted_triton.py", "-k", "TestTritonFloat32 or work", "--timeout", "900")


def install(version: str, folder: Path) -> Path | None:
    """Install the version into a folder of its own, unless it is there; None where it cannot be had."""
    target = folder / version
    ready = target / ".ready"
    if not ready.exists():
        packages = [f"triton-ascend=={version}", *NEEDED]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(target)]
        if subprocess.run([*pip, *packages]).returncode:
            return None
        ready.touch()
    return target


def main() -> int:
    """Exit status of pytest; 0 where there was nothing to test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="3.2.0", help="of triton-ascend (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".triton-ascend", help="where versions are installed")
    arguments, further = parser.parse_known_args()
    target = install(arguments.version, arguments.folder.resolve())
    if target is None:
        print(f"triton-ascend {arguments.version} cannot be had for this machine and this Python: nothing was tested")
        return 0
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "1"}
    return subprocess.run([sys.executable, "-m", "pytest", *TESTS, *further], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
