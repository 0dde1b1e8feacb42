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
    made: list[Rule | None] = []
    problems: list[str] = []
    for position, spec in enumerate(rules):
        lines: list[str] = []
        made.append(_make(spec, lines))
        problems += [f"rules[{position}]{line}" for line in lines]
    if problems:
        raise ValueError("\n".join(problems))
    return [rule for rule in made if rule is not None]


def _make(spec: Any, problems: list[str]) -> Rule | None:
    """None: there are problems."""
    if not isinstance(spec, Mapping):
        problems.append(f": {spec!r} is not allowed; it takes an object with rule_name and args")
        return None
    problems += [
        f".{key}: unknown key; allowed are rule_name and args{_near(str(key), ['rule_name', 'args'])}"
        for key in spec
        if key not in ("rule_name", "args")
    ]
    args = spec.get("args", {})
    if not isinstance(args, Mapping):
        problems.append(f".args: {args!r} is not allowed; it takes an object of arguments")
        args = None
    found = _class_of(spec, problems)
    if found is None or args is None:
        return None
    known = inspect.signature(found).parameters
    problems += [
        f".args.{key}: {found.__name__} has no such argument; allowed: {', '.join(known) or 'none'}"
        f"{_near(str(key), list(known))}"
        for key in args
        if key not in known
    ]
    missing = [key for key, parameter in known.items() if parameter.default is parameter.empty and key not in args]
    problems += [f".args.{key}: is missing; {found.__name__} needs it" for key in missing]
    if missing:
        return None
    try:
        return found(**{key: value for key, value in args.items() if key in known})
    except (TypeError, ValueError) as error:
        lines = str(error).splitlines()
        problems += [f".args.{line}" if line.partition(":")[0] in known else f".args: {line}" for line in lines]
        return None


def _class_of(spec: Mapping[Any, Any], problems: list[str]) -> type[Rule] | None:
    name, names = spec.get("rule_name"), ", ".join(rule_names())
    if not isinstance(name, str):
        state = "is missing" if "rule_name" not in spec else f"{name!r} is not allowed"
        problems.append(f".rule_name: {state}; it takes one of {names}")
        return None
    try:
        return rule_class(name)
    except KeyError:
        near = _near(name, rule_names())
        problems.append(f".rule_name: unknown rule {name!r}; known are {names}{near}")
    except ValueError as error:
        problems.append(f".rule_name: {error}")
    return None


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
