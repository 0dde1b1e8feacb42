"""Checks of single fields whose rules are their own: `ops`, `format`, `ndigits`, a rule of `alert`."""

from collections.abc import Mapping, Sequence

import msmon_stats
from msmon.config.checks import integer
from msmon.config.problems import Problems, join, kind, nearest, shown
from msmon_io import TEXT_OPS, writer_names

OPS = (*msmon_stats.OPS, *TEXT_OPS)
DEFAULT_OPS = ("norm",)
MOST_DIGITS = 100


def parse_ops(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """The known statistics, in the given order, each once. Unknown ones are dropped with a warning that names them."""
    allowed = "a list of " + ", ".join(OPS)
    if not isinstance(value, (list, tuple)):
        note = f"write [{shown(value)}]" if value in OPS else f"not {kind(value)}"
        problems.refuse(path, value, allowed, note)
        return DEFAULT_OPS
    for i, op in enumerate(value):
        if not isinstance(op, str):
            problems.refuse(join(path, i), op, "the name of a statistic", f"not {kind(op)}")
    names = [op for op in value if isinstance(op, str)]
    unknown = [op for op in names if op not in OPS]
    if unknown:
        problems.warn(path, f"dropped {', '.join(map(_with_near, unknown))}; the statistics are {', '.join(OPS)}")
    found = tuple(dict.fromkeys(op for op in names if op in OPS))
    if not found:
        problems.warn(path, "no valid entry, so norm is used")
    return found or DEFAULT_OPS


def _with_near(op: str) -> str:
    near = nearest(op, OPS)
    return f"{shown(op)} (did you mean {shown(near)}?)" if near else shown(op)


def parse_formats(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """One format or a list of them, each once."""
    known = writer_names()
    names = ", ".join(shown(name) for name in known)
    if isinstance(value, (list, tuple)) and value:
        for i, name in enumerate(value):
            _check_format(name, join(path, i), known, f"one of {names}", problems)
        return tuple(dict.fromkeys(name for name in value if isinstance(name, str)))
    _check_format(value, path, known, f"one of {names} or a list of them", problems)
    return (str(value),)


def _check_format(value: object, path: str, known: Sequence[str], allowed: str, problems: Problems) -> None:
    if not isinstance(value, str) or value not in known:
        near = nearest(value, known)
        problems.refuse(path, value, allowed, f"did you mean {shown(near)}?" if near else "")


def parse_ndigits(value: object, path: str, problems: Problems) -> int | None:
    """Decimals; more than any float64 has are cut, since they would only fill the disk with zeros."""
    digits: int | None = integer(1)(value, path, problems)
    if digits is not None and digits > MOST_DIGITS:
        problems.warn(path, f"{shown(value)} is more than a number has, so {MOST_DIGITS} is used")
        return MOST_DIGITS
    return digits


def parse_inside(value: object, path: str, problems: Problems) -> bool | str:
    """How far to look into compiled graphs."""
    if isinstance(value, bool) or value == "stored":
        return value
    problems.refuse(path, value, 'false, "stored" or true', "" if isinstance(value, str) else f"not {kind(value)}")
    return False


def parse_rule_name(value: object, path: str, problems: Problems) -> str:
    if isinstance(value, str) and value:
        return value
    note = "not an empty string" if value == "" else f"not {kind(value)}"
    problems.refuse(path, value, "the name of a rule, such as AnomalyTurbulence", note)
    return ""


def require(key: str, value: object, path: str, problems: Problems) -> None:
    """Record that an object lacks a key which it must have."""
    if isinstance(value, Mapping) and key not in value:
        problems.error(join(path, key), "is missing")
