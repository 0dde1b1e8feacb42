"""Rules that give renamed modules the same name on both sides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from msmon.reading.errors import UnusableRun
from msmon.reading.index import TensorKey

Side = Literal["a", "b"]

_KEYS = {"pattern", "replace", "run", "ignore", "pp_stage", "vpp_stage", "add"}


@attrs.frozen(kw_only=True)
class NameRule:
    """One rule of the file."""

    pattern: re.Pattern[str]
    replace: str = ""
    run: Side | None = None
    """Only names of this run; None: of both."""
    ignore: bool = False
    """Leave out every tensor whose name contains the pattern."""
    pp_stage: int | None = None
    vpp_stage: int | None = None
    """Only names of these stages. A name that a rule with a stage has changed counts as one of stage 0."""
    add: int = 0
    """What to add to the number that the first group of the pattern holds: layers counted from a stage's first."""


@attrs.frozen(kw_only=True)
class NameRules:
    """All rules, applied in their order to every name."""

    rules: Sequence[NameRule] = ()

    def rename(self, key: TensorKey, side: Side) -> TensorKey | None:
        """The name under which a tensor is compared; None: it is left out.

        >>> rules = NameRules(rules=[NameRule(pattern=re.compile(r"\\.gamma$"), replace=".weight", run="b")])
        >>> rules.rename(TensorKey(0, 0, "norm.gamma"), "b").name
        'norm.weight'
        """
        pp_stage, vpp_stage, name = key.pp_stage, key.vpp_stage, key.name
        for rule in self.rules:
            if rule.run not in (None, side) or rule.pp_stage not in (None, pp_stage):
                continue
            if rule.vpp_stage not in (None, vpp_stage) or not rule.pattern.search(name):
                continue
            if rule.ignore:
                return None
            name = rule.pattern.sub(rule.replace, name) if not rule.add else rule.pattern.sub(_adder(rule.add), name)
            if rule.pp_stage is not None:
                pp_stage = 0
            if rule.vpp_stage is not None:
                vpp_stage = 0
        return TensorKey(pp_stage, vpp_stage, name)


def _adder(amount: int) -> Any:
    def add(match: re.Match[str]) -> str:
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return f"{match[0][:start]}{int(match[1]) + amount}{match[0][end:]}"

    return add


def read_rules(path: Path) -> NameRules:
    """Rules from a JSON file: a list of objects with `pattern` and `replace`, `add` or `ignore`.

    Raises:
        UnusableRun: with every problem of the file.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableRun(f"--map {path}: {error}") from error
    if not isinstance(entries, list):
        raise UnusableRun(
            f'--map {path}: a list of rules is expected, like [{{"pattern": "^module\\\\.", "replace": ""}}]'
        )
    problems: list[str] = []
    rules = [_rule(entry, f"rule {number}", problems) for number, entry in enumerate(entries, 1)]
    if problems:
        raise UnusableRun(f"--map {path}: " + "; ".join(problems))
    return NameRules(rules=[rule for rule in rules if rule is not None])


def _rule(entry: object, where: str, problems: list[str]) -> NameRule | None:
    found = len(problems)
    if not isinstance(entry, Mapping):
        problems.append(f"{where} is {entry!r}, not an object")
        return None
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        problems.append(f"{where} has the unknown key {unknown[0]!r}; allowed are {', '.join(sorted(_KEYS))}")
    pattern = _pattern(entry.get("pattern"), where, problems)
    if sum(key in entry for key in ("replace", "add", "ignore")) != 1:
        problems.append(f"{where} needs exactly one of `replace`, `add` and `ignore`")
    replace = entry.get("replace", "")
    if not isinstance(replace, str):
        problems.append(f"{where}: replace is {replace!r}, not a string")
    elif pattern is not None:
        _check_template(pattern, replace, where, problems)
    if entry.get("run") not in (None, "a", "b"):
        problems.append(f'{where}: run is {entry["run"]!r}; allowed are "a" and "b"')
    for key in ("pp_stage", "vpp_stage", "add"):
        if key in entry and type(entry[key]) is not int:
            problems.append(f"{where}: {key} is {entry[key]!r}, not an integer")
    if "ignore" in entry and entry["ignore"] is not True:
        problems.append(f"{where}: ignore is {entry['ignore']!r}; it can only be true")
    if "add" in entry and pattern is not None and r"(\d+)" not in pattern.pattern:
        problems.append(rf"{where}: with `add` the pattern needs a group (\d+) that holds the number")
    if len(problems) > found or pattern is None:
        return None
    return NameRule(**{**entry, "pattern": pattern})


def _pattern(value: object, where: str, problems: list[str]) -> re.Pattern[str] | None:
    if not isinstance(value, str):
        problems.append(f"{where}: pattern is {value!r}, not a string")
        return None
    try:
        return re.compile(value)
    except re.error as error:
        problems.append(f"{where}: pattern {value!r} is no regular expression: {error}")
        return None


def _check_template(pattern: re.Pattern[str], replace: str, where: str, problems: list[str]) -> None:
    # A template is only looked at when something matches; this pattern always does and has the same groups.
    always = re.compile(f"(?:{pattern.pattern})?", pattern.flags)
    try:
        always.sub(replace, "")
    except (re.error, IndexError) as error:
        problems.append(f"{where}: replace {replace!r} does not fit the pattern {pattern.pattern!r}: {error}")
