"""Rules from a configuration, and the rules that other packages register."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from msmon_alert import rules as built_in
from msmon_alert.rule import Rule

ENTRY_POINT_GROUP = "msmon_alert.rules"


def rule_names() -> list[str]:
    """Names that a configuration may use: the package's own rules, then those of installed packages."""
    own = list(built_in.__all__)
    return own + sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - set(own))


def rule_class(name: str) -> type[Rule]:
    """The rule class of that name.

    Raises:
        KeyError: no such rule.
        ValueError: an installed package registers it, but it cannot be imported or is no rule.
    """
    if name in built_in.__all__:
        found: type[Rule] = getattr(built_in, name)
        return found
    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not points:
        raise KeyError(name)
    try:
        loaded = points[0].load()
    except Exception as error:
        raise ValueError(f"{name} is registered as {points[0].value} but cannot be loaded: {error!r}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Rule)):
        raise ValueError(f"{name} is registered as {points[0].value}, which is not a subclass of msmon_alert.Rule")
    return loaded


def rules_from_config(rules: Any) -> list[Rule]:
    """Makes rules of `[{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}, ...]`, in their order.

    Raises:
        ValueError: one message that lists every problem, one a line: where, the value, what is allowed.

    >>> rules_from_config([{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}])
    [AnomalyNan(threshold=None), AnomalyTurbulence(threshold=0.5)]
    """
    if not isinstance(rules, list):
        raise ValueError(f"rules: {rules!r} is not allowed; it takes a list of {{'rule_name': ..., 'args': {{...}}}}")
    made: list[Rule] = []
    problems: list[str] = []
    for position, spec in enumerate(rules):
        try:
            made.append(_make(spec))
        except _Problems as found:
            problems.extend(f"rules[{position}]{line}" for line in found.lines)
    if problems:
        raise ValueError("\n".join(problems))
    return made


class _Problems(Exception):
    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


def _make(spec: Any) -> Rule:
    if not isinstance(spec, Mapping):
        raise _Problems(f": {spec!r} is not allowed; it takes an object with rule_name and args")
    problems = [
        f".{key}: unknown key; allowed are rule_name and args{_near(str(key), ['rule_name', 'args'])}"
        for key in spec
        if key not in ("rule_name", "args")
    ]
    args = spec.get("args", {})
    if not isinstance(args, Mapping):
        problems.append(f".args: {args!r} is not allowed; it takes an object of arguments")
        args = None
    name = spec.get("rule_name")
    if not isinstance(name, str):
        state = "is missing" if "rule_name" not in spec else f"{name!r} is not allowed"
        raise _Problems(*problems, f".rule_name: {state}; it takes one of {', '.join(rule_names())}")
    try:
        found = rule_class(name)
    except KeyError:
        raise _Problems(
            *problems,
            f".rule_name: unknown rule {name!r}; known are {', '.join(rule_names())}{_near(name, rule_names())}",
        ) from None
    except ValueError as error:
        raise _Problems(*problems, f".rule_name: {error}") from error
    if args is None:
        raise _Problems(*problems)
    problems.extend(_unknown_arguments(found, args))
    missing = _missing_arguments(found, args)
    problems.extend(missing)
    rule = None
    if not missing:
        known = _parameters(found)
        try:
            rule = found(**{key: value for key, value in args.items() if key in known})
        except (TypeError, ValueError) as error:
            for line in str(error).splitlines():
                problems.append(f".args.{line}" if line.partition(":")[0] in known else f".args: {line}")
    if problems or rule is None:
        raise _Problems(*problems)
    return rule


def _parameters(rule: type[Rule]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(rule).parameters


def _unknown_arguments(rule: type[Rule], args: Mapping[str, Any]) -> list[str]:
    known = list(_parameters(rule))
    allowed = ", ".join(known) or "none"
    return [
        f".args.{key}: {rule.__name__} has no such argument; allowed: {allowed}{_near(str(key), known)}"
        for key in args
        if key not in known
    ]


def _missing_arguments(rule: type[Rule], args: Mapping[str, Any]) -> list[str]:
    return [
        f".args.{key}: is missing; {rule.__name__} needs it"
        for key, parameter in _parameters(rule).items()
        if parameter.default is parameter.empty and key not in args
    ]


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
