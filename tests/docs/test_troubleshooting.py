"""The messages and reasons that docs/troubleshooting.md explains are those that msmon gives."""

from __future__ import annotations

import re

import pytest

from .pages import ROOT, read

SOURCES = "".join(path.read_text() for path in sorted(ROOT.glob("packages/*/src/**/*.py")))


def first_column(title: str) -> list[str]:
    section = read("docs/troubleshooting.md").partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("title", ["No rows for some tensors", "Messages"])
def test_messages(title: str) -> None:
    quoted = first_column(title)
    assert len(quoted) > 4
    for message in quoted:
        # What differs from case to case stands as a capital letter, as the name of an output, or as three dots.
        for part in re.split(r"\b[A-Z]\b|\.\.\.|^csv", message):
            assert part.strip(" ;:'") in SOURCES, f"{message!r}: {part!r}"
