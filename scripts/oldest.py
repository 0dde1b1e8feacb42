"""Run tests with the oldest supported versions, and the packages that need no framework on each supported Python.

python scripts/oldest.py [--folder .oldest] [--only torch | neutral] [pytest arguments]

`torch`: Python 3.10, torch 2.1.2 with numpy 1.26, and every other dependency at its lower bound, which is read from the
metadata of the packages. `neutral`: no framework; the newest versions on Python 3.12, the lower bounds on Python 3.10.
Interpreters are found on the PATH or under ~/.pyenv; one that is missing is said and left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
PACKAGES = ("msmon-stats", "msmon-hooks", "msmon-alert", "msmon-io", "msmon")
MODULES = [package.replace("-", "_") for package in PACKAGES]
TORCH = ["torch==2.1.2"]
# torch 2.1 was built for numpy 1, and imports pkg_resources for extensions.
NUMPY_FOR_TORCH = "numpy==1.26.0"
TOOLS = ["pytest", "pytest-timeout", "pytest-benchmark", "hypothesis", "tqdm", "setuptools<81", "packaging", "tomli"]
READERS = ["duckdb", "polars", "pandas<3"]
"""What tests read our files with; any version will do."""
WITH_TORCH = ["tests/stats", "tests/hooks", "tests/alert", "tests/io", "tests/msmon"]
# The bench trains for minutes and needs no version. Python 3.10 beside torch: see docs/versions.md.
NOT_WITH_TORCH = {"tests/alert/faults/test_faults.py", "tests/msmon/reading/test_diff_trainings.py"}
NEUTRAL = ["tests/stats/test_numpy.py", "tests/hooks/test_doctests.py", "tests/alert", "tests/io", "tests/msmon"]


def lower_bounds() -> list[str]:
    """`name==oldest` of every dependency and extra, frameworks and siblings left out."""
    found = {}
    for package in PACKAGES:
        project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
        extras = [text for texts in project.get("optional-dependencies", {}).values() for text in texts]
        for text in [*project["dependencies"], *extras]:
            name, bound = re.match(r"([\w-]+)(?:\[[\w,]+\])?(?:>=([\d.]+))?", text).groups()
            if bound and not name.startswith("msmon") and name not in ("torch", "mindspore"):
                found[name] = max(bound, found.get(name, bound), key=lambda one: [int(part) for part in one.split(".")])
    return [f"{name}=={bound}.*" if bound.count(".") < 2 else f"{name}=={bound}" for name, bound in found.items()]


def interpreter(version: str) -> str | None:
    """A Python of that version."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
        return found
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else None


def environment(folder: Path, version: str, requirements: list[str]) -> Path | None:
    """A virtual environment with these packages and ours; made once."""
    python = interpreter(version)
    if python is None:
        print(f"Python {version} is not here: left out")
        return None
    inside = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        ours = [word for package in PACKAGES for word in ("-e", str(ROOT / "packages" / package))]
        subprocess.run([str(inside), "-m", "pip", "install", "-q", *requirements], check=True)
        subprocess.run([str(inside), "-m", "pip", "install", "-q", "--no-deps", *ours], check=True)
        ready.touch()
    return inside


def tests(python: Path, places: list[str], left_out: set[str], further: list[str]) -> int:
    """Exit status of pytest; files that need what is not installed are left out, and named."""
    found = [
        str(path.relative_to(ROOT))
        for place in places
        for path in ([ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("test_*.py")))
    ]
    files = [file for file in found if file not in left_out]
    listing = subprocess.run(
        [str(python), "-m", "pytest", "-q", "--collect-only", "--continue-on-collection-errors", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    missing = {}
    for section in listing.split("_ ERROR collecting ")[1:]:
        module = re.search(r"ModuleNotFoundError: No module named '([^']+)'", section)
        if module is not None:
            missing[section.split()[0]] = module[1]
    ours = sorted({module for module in missing.values() if module.partition(".")[0] in MODULES})
    if ours:
        # Else every test would be left out, and nothing would fail.
        sys.exit(f"{python}: {', '.join(ours)} cannot be imported; remove its environment, it is made anew")
    for file, module in missing.items():
        print(f"{file}: left out, it needs {module}")
    command = [str(python), "-m", "pytest", "-q", *(file for file in files if file not in missing), *further]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "2"}).returncode


def main() -> int:
    """The worst exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / ".oldest", help="where environments are kept")
    parser.add_argument("--only", choices=["torch", "neutral"])
    given, further = parser.parse_known_args()
    bounds = lower_bounds()
    print("oldest versions:", *TORCH, *bounds)
    runs = []
    if given.only != "neutral":
        old = [bound for bound in bounds if not bound.startswith("numpy")]
        runs.append(("torch", "3.10", [*TORCH, NUMPY_FOR_TORCH, *old, *TOOLS, *READERS], WITH_TORCH, NOT_WITH_TORCH))
    if given.only != "torch":
        newest = [bound.partition("==")[0] for bound in bounds]
        runs.append(("neutral-oldest", "3.10", [*bounds, *TOOLS, *READERS], NEUTRAL, set()))
        runs.append(("neutral-newest", "3.12", [*newest, *TOOLS, *READERS], NEUTRAL, set()))
    worst = 0
    for name, version, requirements, places, left_out in runs:
        print(f"{name}, Python {version}", flush=True)
        python = environment(given.folder / name, version, requirements)
        if python is not None:
            worst = max(worst, tests(python, places, left_out, further))
    return worst


if __name__ == "__main__":
    sys.exit(main())
