"""Checks of single fields whose rules are their own: `ops`, `format`, `ndigits`, `append_output`."""

import msmon_stats
from msmon.config.checks import choice, integer, list_of
from msmon.config.problems import Problems, join, kind, nearest, shown
from msmon_io import TEXT_OPS, writer_names
from msmon_io.run_dirs import parse_range, parse_stamp

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
    if isinstance(value, (list, tuple)) and value:
        names = list_of(choice(writer_names()), "formats")(value, path, problems)
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
    return (choice(writer_names(), " or a list of them")(value, path, problems),)


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


def parse_append_output(value: object, path: str, problems: Problems) -> tuple[str, ...]:
    """The check of `append_output`: nothing, or the first and the last time stamp."""
    allowed = '[] or two time stamps such as ["Dec03_21-34-40", "Dec03_21-34-41"]'
    if not isinstance(value, (list, tuple)):
        problems.refuse(path, value, allowed, f"not {kind(value)}")
        return ()
    if len(value) not in (0, 2):
        problems.refuse(path, value, allowed, f"not {len(value)} of them")
    found = len(problems.errors)
    for i, stamp in enumerate(value):
        try:
            parse_stamp(stamp)
        except ValueError:
            note = "" if isinstance(stamp, str) else f"not {kind(stamp)}"
            problems.refuse(join(path, i), stamp, "a time stamp such as Dec03_21-34-40", note)
    if len(value) == 2 and len(problems.errors) == found:
        try:
            parse_range(*value)
        except ValueError:
            problems.refuse(path, value, allowed, "the earlier one comes first")
    return tuple(value)
