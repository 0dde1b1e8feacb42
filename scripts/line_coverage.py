"""Which lines the tests run: a table by package, and by file what is below the limit.

python scripts/line_coverage.py [--limit 90] [--list] [pytest arguments]

Measures the tests of the packages and the trainings in one process (`tests/integration`), child processes included.
What imports no framework must reach the limit; the halves of torch are shown. Not counted are MindSpore's halves, which
have an environment of their own, Triton's kernels, and the engines, whose tests run in processes that end abruptly.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ["stats", "hooks", "alert", "io", "msmon", "integration"]
PACKAGES = ("msmon_stats", "msmon_hooks", "msmon_alert", "msmon_io", "msmon")
NOT_COUNTED = ("/mindspore/", "/torch/grads/", "/torch/collectives/", "/_triton.py", "/integrations/", "/__main__.py")


def kind(path: str) -> str | None:
    """`neutral`, `torch`, or None where a file is not counted."""
    if any(part in path for part in NOT_COUNTED):
        return None
    return "torch" if any(part in path for part in ("/torch/", "/pytorch/", "/demo/")) else "neutral"


def table(report: dict[str, dict[str, dict[str, int]]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Package and kind to lines that were run, and lines that there are."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for path, entry in report["files"].items():
        what = kind("/" + path)
        package = next(name for name in PACKAGES if f"/src/{name}/" in "/" + path)
        if what is not None:
            run, every = found.get((package, what), (0, 0))
            summary = entry["summary"]
            found[package, what] = (run + summary["covered_lines"], every + summary["num_statements"])
    return found


def measure(further: list[str], folder: Path) -> tuple[int, dict[str, dict[str, dict[str, int]]]]:
    """Run the tests; their exit status, and coverage's report."""
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "data"), "COVERAGE_RCFILE": str(ROOT / "pyproject.toml")}
    places = [word for word in further if word.startswith("tests")] or [f"tests/{name}" for name in TESTS]
    # The bench of faults trains for minutes, and runs no line that others do not.
    options = ["--ignore=tests/alert/faults", *(word for word in further if not word.startswith("tests"))]
    coverage = [sys.executable, "-m", "coverage"]

    def run(*words: str) -> int:
        return subprocess.run([*coverage, *words], cwd=ROOT, env=environment).returncode

    status = run("run", "-m", "pytest", "-q", *places, *options)
    run("combine", "-q")
    run("json", "-q", "-o", str(folder / "report.json"))
    return status, json.loads((folder / "report.json").read_text())


def main() -> int:
    """Exit status: 0 all is well, 1 below the limit or a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=90, help="percent of the lines that import no framework")
    parser.add_argument("--list", action="store_true", help="every file below the limit, with its missing lines")
    given, further = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        status, report = measure(further, Path(name))
    low = []
    print(f"\n{'package':12} {'':8} {'lines':>6} {'run':>7}")
    for (package, what), (run, every) in sorted(table(report).items()):
        share = 100 * run / max(every, 1)
        if what == "neutral" and share < given.limit:
            low.append(package)
        print(f"{package:12} {what:8} {every:6} {share:6.1f}%")
    if given.list:
        for path, entry in sorted(report["files"].items()):
            if kind("/" + path) and entry["summary"]["percent_covered"] < given.limit:
                print(f"{path}: {entry['summary']['percent_covered']:.0f}%: {entry['missing_lines']}")
    if low:
        print(f"below {given.limit:g} %: {', '.join(low)}")
    return 1 if low or status else 0


if __name__ == "__main__":
    sys.exit(main())
