"""Raise the version of one package: its `__version__`, its change log, and the pins of the packages that need it.

python scripts/bump.py PACKAGE (patch | minor | major | release | unreleased | VERSION) [--dry-run]

`release` releases the version as it stands, for one that was never released; `unreleased` opens the next section of the
change log. Below 1.0 a pin excludes the next minor version, from 1.0 on the next major one.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("msmon-stats", "msmon-hooks", "msmon-alert", "msmon-io", "msmon")
Version = tuple[int, int, int]


class Refused(Exception):
    """The change makes no sense; the message says why."""


def parse(text: str) -> Version:
    """The three numbers of a version."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise Refused(f"{text!r} is no version; it is three numbers, such as 0.2.0, or patch, minor, major, release")
    return int(found[1]), int(found[2]), int(found[3])


def show(version: Version) -> str:
    return ".".join(map(str, version))


def following(version: Version, change: str) -> Version:
    """The version after a change."""
    major, minor, patch = version
    steps = {"patch": (major, minor, patch + 1), "minor": (major, minor + 1, 0), "major": (major + 1, 0, 0)}
    return steps.get(change) or (version if change == "release" else parse(change))


def pin(name: str, version: Version) -> str:
    """What a package that needs this one writes.

    >>> pin("msmon-io", (0, 2, 5)), pin("msmon-io", (1, 4, 0))
    ('msmon-io>=0.2,<0.3', 'msmon-io>=1.4,<2')
    """
    major, minor, _ = version
    return f"{name}>={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def version_file(root: Path, package: str) -> Path:
    return root / "packages" / package / "src" / package.replace("-", "_") / "__init__.py"


def current(root: Path, package: str) -> Version:
    """The version that is written in the package."""
    found = re.search(r'^__version__ = "(.+)"$', version_file(root, package).read_text(), re.MULTILINE)
    if found is None:
        raise Refused(f"{version_file(root, package)} has no __version__")
    return parse(found[1])


def edits(root: Path, package: str, change: str, today: str) -> dict[Path, str]:
    """The files that change, with their new text."""
    log = root / "packages" / package / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    old = current(root, package)
    heading = re.search(r"^## (\S+) \((.+)\)$", text, re.MULTILINE)
    if heading is None:
        raise Refused(f"{log} has no heading such as `## {show(old)} (unreleased)`")
    pending = heading[2] == "unreleased"
    if change == "unreleased":
        if pending:
            raise Refused(f"{log}: {heading[0]} is open already")
        position = heading.start()
        return {log: f"{text[:position]}## {show(following(old, 'patch'))} (unreleased)\n\n{text[position:]}"}
    new = following(old, change)
    if change != "release" and new <= old:
        raise Refused(f"{package} is {show(old)}; {show(new)} is not newer")
    if not pending:
        raise Refused(f"{log} has no section (unreleased): what has changed?")
    body = text[heading.end() :].partition("\n## ")[0]
    if not body.strip():
        raise Refused(f"{log}: nothing stands below {heading[0]}")
    changed = {log: text.replace(heading[0], f"## {show(new)} ({today})", 1)}
    source = version_file(root, package)
    changed[source] = source.read_text().replace(f'__version__ = "{show(old)}"', f'__version__ = "{show(new)}"')
    for project in sorted(root.glob("packages/*/pyproject.toml")):
        before = project.read_text()
        after = re.sub(rf'"{package}>=[^"]*"', f'"{pin(package, new)}"', before)
        if after != before:
            changed[project] = after
    return {path: text for path, text in changed.items() if path.read_text(encoding="utf-8") != text}


def main(arguments: list[str] | None = None, root: Path = ROOT, today: str | None = None) -> int:
    """Exit status: 0 done, 2 refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("change", help="patch, minor, major, release, unreleased, or a version")
    parser.add_argument("--dry-run", action="store_true", help="say what would change")
    given = parser.parse_args(arguments)
    try:
        changed = edits(root, given.package, given.change, today or datetime.date.today().isoformat())
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    old = current(root, given.package)
    new = old if given.change == "unreleased" else following(old, given.change)
    for path, text in changed.items():
        print(path.relative_to(root))
        if not given.dry_run:
            path.write_text(text, encoding="utf-8")
    others = [path.parent.name for path in changed if path.name == "pyproject.toml"]
    if others:
        print(f"the pins of {', '.join(others)} changed: release them too")
    if given.change != "unreleased":
        print(f"next: git commit, git tag {given.package}-v{show(new)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
