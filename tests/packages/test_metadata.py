"""Metadata of the five packages: complete, alike where it should be, and pins that admit the siblings."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
PYTHONS = ("3.10", "3.11", "3.12")


def project(package: str) -> dict:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def version(package: str) -> str:
    return importlib.import_module(package.replace("-", "_")).__version__


def requirements(package: str) -> list[Requirement]:
    found = project(package)
    extras = [text for texts in found.get("optional-dependencies", {}).values() for text in texts]
    return [Requirement(text) for text in [*found["dependencies"], *extras]]


def test_there_are_five() -> None:
    assert PACKAGES == ["msmon", "msmon-alert", "msmon-hooks", "msmon-io", "msmon-stats"]


@pytest.mark.parametrize("package", PACKAGES)
def test_pins_admit_the_siblings(package: str) -> None:
    for requirement in requirements(package):
        if requirement.name.startswith("msmon"):
            assert requirement.name in PACKAGES
            assert requirement.specifier.contains(version(requirement.name)), str(requirement)
            unknown = requirement.extras - set(project(requirement.name).get("optional-dependencies", ()))
            assert not unknown, str(requirement)


@pytest.mark.parametrize("package", PACKAGES)
def test_only_msmon_needs_the_others(package: str) -> None:
    siblings = {requirement.name for requirement in requirements(package) if requirement.name.startswith("msmon")}
    assert siblings == (set(PACKAGES) - {"msmon"} if package == "msmon" else set())


def test_pins_exclude_what_may_break() -> None:
    for requirement in map(Requirement, project("msmon")["dependencies"]):
        if requirement.name.startswith("msmon"):
            major, minor, _ = map(int, version(requirement.name).split("."))
            after = f"0.{minor + 1}.0" if major == 0 else f"{major + 1}.0.0"
            assert not requirement.specifier.contains(after), str(requirement)


@pytest.mark.parametrize("package", PACKAGES)
def test_metadata(package: str) -> None:
    found, folder = project(package), ROOT / "packages" / package
    assert found["requires-python"] == ">=3.10"
    for python in PYTHONS:
        assert f"Programming Language :: Python :: {python}" in found["classifiers"]
        assert SpecifierSet(found["requires-python"]).contains(f"{python}.0")
    assert "Typing :: Typed" in found["classifiers"]
    assert found["description"]
    assert found["keywords"]
    assert found["readme"] == "README.md"
    # A framework is an extra everywhere: clusters have builds of their own.
    assert not {"torch", "mindspore"} & {Requirement(text).name for text in found["dependencies"]}
    for name in ("README.md", "CHANGELOG.md", *found["license-files"]):
        assert (folder / name).is_file(), name
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (folder / "src" / package.replace("-", "_") / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_change_log(package: str) -> None:
    text = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    assert headings
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(headings)
    assert not [entry for entry in headings[1:] if entry[1] == "unreleased"]
    assert version(package) in [number for number, _ in headings]
