"""Check what `make dist` has built: each wheel and each source distribution works alone.

python scripts/check_dist.py [--dist dist] [--python PYTHON] [--skip-tests] [PACKAGE ...]

1. `twine check --strict`.
2. Every file that must be there is: licences, py.typed, the change log.
3. The wheel is installed in an empty environment; what it needs comes from PyPI, our own packages from `dist/`. It and
   its public names are imported there.
4. The same for the source distribution. Then its extras that are no framework are installed too, and the tests of the
   package that need no framework are run against it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("msmon-stats", "msmon-hooks", "msmon-alert", "msmon-io", "msmon")
TEST_TOOLS = ["pytest", "pytest-timeout", "pytest-benchmark", "hypothesis"]
EXTRAS = {"msmon-stats": "[cpu]", "msmon-io": "[tensorboard,parquet,progress]", "msmon": "[tensorboard,report]"}
TESTS = {
    "msmon-stats": ["tests/stats/test_numpy.py"],
    "msmon-hooks": ["tests/hooks/test_doctests.py"],
    "msmon-alert": ["tests/alert"],
    "msmon-io": ["tests/io"],
    "msmon": ["tests/msmon"],
}
"""Those that need no framework; of a folder, all files that do not import what is missing."""
IMPORT = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
assert "site-packages" in module.__file__, module.__file__
missing = [name for name in module.__all__ if name != "TrainerMon" and not hasattr(module, name)]
assert not missing, missing
frameworks = {"torch", "mindspore"} & set(sys.modules)
assert not frameworks, frameworks
print(module.__version__ if hasattr(module, "__version__") else "")
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, quietly unless it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}\nends with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )


def files_of(path: Path) -> set[str]:
    """The names in a wheel or source distribution, without the folder of the latter."""
    if path.suffix == ".whl":
        return set(zipfile.ZipFile(path).namelist())
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def check_files(package: str, wheel: Path, sdist: Path) -> None:
    """What must be there is."""
    module = package.replace("-", "_")
    inside = files_of(wheel)
    for name in (f"{module}/py.typed", f"{module}/__init__.py"):
        assert name in inside, f"{wheel.name} lacks {name}"
    assert any(name.endswith("licenses/LICENSE") for name in inside), f"{wheel.name} lacks its licence"
    strangers = {name for name in inside if not name.startswith((f"{module}/", f"{module}-"))}
    assert not strangers, f"{wheel.name} holds {strangers}"
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", f"src/{module}/py.typed"):
        assert name in files_of(sdist), f"{sdist.name} lacks {name}"


def check_alone(package: str, built: Path, folder: Path, python: str, tests: bool) -> None:
    """Install it in an empty environment, import it, and run its tests there."""
    environment = folder / built.name
    run(python, "-m", "venv", "--without-pip", environment)
    inside = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", inside, "install", "-q", "--find-links", built.parent]
    run(*pip, built)
    run(inside, "-I", "-c", IMPORT, package.replace("-", "_"), cwd=folder)
    if tests:
        run(*pip, f"{built}{EXTRAS.get(package, '')}", *TEST_TOOLS)
        run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *needing_nothing_else(package, inside))


def needing_nothing_else(package: str, python: Path) -> list[str]:
    """The test files of a package that can be imported with what is installed."""
    found = []
    for place in TESTS[package]:
        files = [place] if place.endswith(".py") else sorted(map(str, (ROOT / place).glob("test_*.py")))
        for file in files:
            done = subprocess.run([python, "-m", "pytest", "-q", "--collect-only", file], cwd=ROOT, capture_output=True)
            if done.returncode == 0:
                found.append(file)
    assert found, f"no test of {package} can be run"
    return found


def main() -> int:
    """Exit status: 0 all is well; a message and 1 where it is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", default=sys.executable, help="of the empty environments (default: this one)")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="PACKAGE")
    given = parser.parse_args()
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(given.dist.glob("msmon*")))
    with tempfile.TemporaryDirectory() as name:
        for package in given.packages:
            stem = package.replace("-", "_")
            (wheel,) = given.dist.glob(f"{stem}-[0-9]*.whl")
            (sdist,) = given.dist.glob(f"{stem}-[0-9]*.tar.gz")
            check_files(package, wheel, sdist)
            check_alone(package, wheel, Path(name), given.python, tests=False)
            check_alone(package, sdist, Path(name), given.python, tests=not given.skip_tests)
            print(f"{package}: {wheel.name}, {sdist.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
