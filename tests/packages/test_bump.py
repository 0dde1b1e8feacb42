"""scripts/bump.py raises one version, and everything that depends on it, and refuses what makes no sense."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load():
    spec = importlib.util.spec_from_file_location("bump", ROOT / "scripts" / "bump.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bump = load()


@pytest.fixture
def copy(tmp_path):
    """The files that a bump may change."""
    for package in bump.PACKAGES:
        target = tmp_path / "packages" / package
        source = ROOT / "packages" / package
        target.mkdir(parents=True)
        for name in ("pyproject.toml", "CHANGELOG.md"):
            shutil.copy(source / name, target / name)
        init = bump.version_file(ROOT, package)
        bump.version_file(tmp_path, package).parent.mkdir(parents=True)
        shutil.copy(init, bump.version_file(tmp_path, package))
        # The tests are about a package whose last release was 0.1.0, whatever it is by now.
        bump.version_file(tmp_path, package).write_text('__version__ = "0.1.0"\n')
        (target / "CHANGELOG.md").write_text(f"# Changelog of {package}\n\n## 0.1.1 (unreleased)\n\n* New.\n")
    return tmp_path


def pins(root):
    return (root / "packages/msmon/pyproject.toml").read_text()


def run(root, *arguments):
    return bump.main(list(arguments), root=root, today="2026-12-24")


def test_minor(copy, capsys):
    assert run(copy, "msmon-alert", "minor") == 0
    assert bump.current(copy, "msmon-alert") == (0, 2, 0)
    assert "## 0.2.0 (2026-12-24)\n\n* New." in (copy / "packages/msmon-alert/CHANGELOG.md").read_text()
    assert '"msmon-alert>=0.2,<0.3"' in pins(copy)
    assert '"msmon-io>=0.1,<0.2"' in pins(copy)
    out = capsys.readouterr().out
    assert "the pins of msmon changed: release them too" in out
    assert "git tag msmon-alert-v0.2.0" in out


def test_patch_changes_no_pin(copy):
    before = pins(copy)
    assert run(copy, "msmon-stats", "patch") == 0
    assert bump.current(copy, "msmon-stats") == (0, 1, 1)
    assert pins(copy) == before


def test_extras_are_no_pins(copy):
    assert run(copy, "msmon-stats", "major") == 0
    assert '"msmon-stats>=1.0,<2"' in pins(copy)
    assert '"msmon-stats[cpu]"' in pins(copy)


def test_one_package_alone(copy):
    assert run(copy, "msmon", "minor") == 0
    assert bump.current(copy, "msmon") == (0, 2, 0)
    assert {bump.current(copy, package) for package in bump.PACKAGES[:-1]} == {(0, 1, 0)}


def test_first_release_and_next_section(copy):
    assert run(copy, "msmon-io", "release") == 0
    assert bump.current(copy, "msmon-io") == (0, 1, 0)
    log = copy / "packages/msmon-io/CHANGELOG.md"
    assert "## 0.1.0 (2026-12-24)" in log.read_text()
    assert run(copy, "msmon-io", "unreleased") == 0
    assert log.read_text().startswith(
        "# Changelog of msmon-io\n\n## 0.1.1 (unreleased)\n\n## 0.1.0 (2026-12-24)\n\n* New."
    )


def test_dry_run(copy, capsys):
    before = {path: path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert run(copy, "msmon-alert", "0.4.0", "--dry-run") == 0
    assert {path: path.read_text() for path in before} == before
    assert "git tag msmon-alert-v0.4.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("msmon-io", "0.1.0"), "msmon-io is 0.1.0; 0.1.0 is not newer"),
        (("msmon-io", "bigger"), "'bigger' is no version"),
        (("msmon-io", "unreleased"), "is open already"),
    ],
)
def test_refused(copy, capsys, arguments, problem):
    assert run(copy, *arguments) == 2
    assert problem in capsys.readouterr().err


def test_nothing_changed_is_refused(copy, capsys):
    log = copy / "packages/msmon-io/CHANGELOG.md"
    log.write_text("# Changelog\n\n## 0.1.1 (unreleased)\n\n## 0.1.0 (2026-01-01)\n\n* Old.\n")
    assert run(copy, "msmon-io", "patch") == 2
    assert "nothing stands below" in capsys.readouterr().err
    log.write_text("# Changelog\n\n## 0.1.0 (2026-01-01)\n\n* Old.\n")
    assert run(copy, "msmon-io", "patch") == 2
    assert "has no section (unreleased)" in capsys.readouterr().err
