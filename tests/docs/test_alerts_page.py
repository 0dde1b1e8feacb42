"""docs/alerts.md has every rule with its arguments, and recommends what the package recommends."""

from __future__ import annotations

import json
import re

import attrs

import msmon_alert

from .pages import blocks, read

PAGE = "docs/alerts.md"
RULES = {name for name in msmon_alert.__all__ if name.startswith("Anomaly")} - {"AnomalyFile"}


def table(title: str) -> list[list[str]]:
    section = read(PAGE).partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    return [row.strip("| ").split(" | ") for row in rows[1:]]


def test_every_rule_has_its_arguments() -> None:
    rows = {row[0].strip("`"): row[1] for row in table("Arguments")}
    assert set(rows) == RULES
    for name, text in rows.items():
        documented = dict(re.findall(r"`(\w+)` \(([^)]+)\)", text))
        fields = attrs.fields(getattr(msmon_alert, name))
        assert list(documented) == [field.name for field in fields], name
        for field in fields:
            default = {attrs.NOTHING: "required", None: "none"}.get(field.default, f"{field.default}")
            if isinstance(field.default, float):
                default = f"{field.default:g}"
            assert documented[field.name] == default, (name, field.name)


def test_every_rule_finds_something() -> None:
    named = {name for row in table("Which rule finds what") for name in re.findall(r"Anomaly\w+", row[1])}
    assert named == RULES


def test_recommended() -> None:
    here = json.loads(blocks(PAGE)[0].text)
    there = next(block for block in blocks("packages/msmon-alert/README.md") if block.notes.get("json") == "rules")
    assert here["alert"]["rules"] == json.loads(there.text)
    assert str(here["ops"]).replace("'", '"') in read("packages/msmon-alert/README.md")
