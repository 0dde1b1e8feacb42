"""What an import brings along: no framework comes with the neutral packages, and no leaf package with another."""

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import sys
{statement}
found = sorted({{name.partition(".")[0] for name in sys.modules}} & set({forbidden!r}))
sys.exit(f"imported along: {{', '.join(found)}}" if found else 0)
"""
FRAMEWORKS = ["torch", "mindspore", "tensorboard", "tensorflow", "pandas", "pyarrow"]
LEAVES = ["msmon_stats", "msmon_hooks", "msmon_alert", "msmon_io"]


def imported_along(statement: str, forbidden: list[str]) -> str:
    code = PROBE.format(statement=statement, forbidden=forbidden)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.strip()


@pytest.mark.parametrize("package", LEAVES)
def test_leaf_packages_stand_alone(package):
    others = [leaf for leaf in LEAVES if leaf != package]
    assert imported_along(f"import {package}", [*FRAMEWORKS, *others, "msmon"]) == ""


def test_msmon_and_its_command_line_import_no_framework():
    statement = "import msmon, msmon.config, msmon.pipeline, msmon.monitor, msmon.cli; msmon.cli.main(['--help'])"
    assert imported_along(statement, FRAMEWORKS) == ""


def test_the_twin_that_must_fail():
    assert imported_along("import msmon.pytorch", FRAMEWORKS) == "imported along: torch"
    assert "msmon_io" in imported_along("import msmon.pipeline", LEAVES)


def test_no_package_imports_a_sibling_in_its_source():
    root = Path(__file__).parents[2] / "packages"
    for leaf in LEAVES:
        for path in (root / leaf.replace("_", "-") / "src").rglob("*.py"):
            text = path.read_text()
            for other in [*LEAVES, "msmon"]:
                if other != leaf:
                    assert f"import {other}\n" not in text, path
                    assert f"from {other} " not in text, path
                    assert f"from {other}." not in text, path
