"""Run Megatron's tests against another version of megatron-core than the one that is developed with.

python scripts/old_megatron.py [--version 0.8.0] [pytest arguments]

The version goes into a folder of its own, together with the setuptools that it needs, and is found before the installed
one. Everything else, torch included, is that of the environment in which this runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ("tests/distributed/test_megatron.py", "tests/distributed/test_megatron_gpt.py")


def install(version: str, folder: Path) -> Path:
    """Install the version into a folder of its own, unless it is there."""
    target = folder / version
    if not (target / f"megatron_core-{version}.dist-info").is_dir():
        # Old versions import pkg_resources, which newer ones of setuptools lack.
        packages = [f"megatron-core=={version}", "setuptools<81"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *packages]
        subprocess.run(pip, check=True)
    return target


def main() -> int:
    """Exit status of pytest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="0.8.0", help="of megatron-core (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".megatron", help="where versions are installed")
    arguments, further = parser.parse_known_args()
    target = install(arguments.version, arguments.folder)
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", *TESTS, *further]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
