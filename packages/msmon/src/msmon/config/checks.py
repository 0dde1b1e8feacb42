"""The check that stands behind each field: takes a JSON value, gives what the program uses, or records a problem."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from msmon.config.problems import Problems, join, kind, nearest, shown

T = TypeVar("T")
Check = Callable[[object, str, Problems], Any]
"""`check(value, path, problems)`. When it has recorded an error, what it returns is not used."""

_MOST_NESTED = 20


def setting(default: T, check: Check) -> T:
    """A field of a configuration class: its default and the check of a given value."""
    field: T = attrs.field(default=default, metadata={"check": check})
    return field


def parse_fields(cls: type[T], value: object, path: str, problems: Problems, paths: tuple[str, ...] = ()) -> T | None:
    """An instance of the attrs class `cls` from a JSON object; unknown keys are problems.

    `paths` are the full paths of other objects' keys, for the hint about a key in the wrong place.
    """
    if not isinstance(value, Mapping):
        problems.refuse(path, value, "an object", f"not {kind(value)}")
        return None
    fields = checked_fields(cls)
    for key in value:
        if key not in fields:
            problems.unknown_key(path, key, fields, paths)
    return cls(**{k: check(value[k], join(path, k), problems) for k, check in fields.items() if k in value})


def checked_fields(cls: type) -> dict[str, Check]:
    """The names that a configuration file may give to `cls`, with their checks."""
    return {f.name: f.metadata["check"] for f in attrs.fields(cls) if "check" in f.metadata}


def of_type(wanted: type, allowed: str) -> Check:
    def check(value: object, path: str, problems: Problems) -> object:
        if isinstance(value, wanted):
            return value
        problems.refuse(path, value, allowed, f"not {kind(value)}")
        return None

    return check


boolean = of_type(bool, "true or false")
string = of_type(str, "a string")


def integer(minimum: int) -> Check:
    def check(value: Any, path: str, problems: Problems) -> Any:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if is_integer and value >= minimum:
            return value
        problems.refuse(path, value, f"an integer >= {minimum}", "" if is_integer else _as_integer(value))
        return None

    return check


def positive_number(value: object, path: str, problems: Problems) -> float | None:
    allowed = "a finite number > 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        problems.refuse(path, value, allowed, f"not {kind(value)}")
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number > 0 and math.isfinite(number):
        return number
    problems.refuse(path, value, allowed)
    return None


def choice(names: Sequence[str], more: str = "") -> Check:
    def check(value: object, path: str, problems: Problems) -> object:
        if not isinstance(value, str) or value not in names:
            near = nearest(value, names)
            allowed = f"one of {', '.join(map(shown, names))}{more}"
            problems.refuse(path, value, allowed, f"did you mean {shown(near)}?" if near else "")
        return value

    return check


def list_of(item: Check, what: str) -> Check:
    """A list whose entries pass `item`; becomes a tuple."""

    def check(value: object, path: str, problems: Problems) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            problems.refuse(path, value, f"a list of {what}", f"not {kind(value)}")
            return ()
        return tuple(item(entry, join(path, i), problems) for i, entry in enumerate(value))

    return check


def distinct(check: Check) -> Check:
    """A list check whose repeated entries are dropped, the first stays."""
    return lambda value, path, problems: tuple(dict.fromkeys(check(value, path, problems)))


def object_of(cls: type) -> Check:
    return lambda value, path, problems: parse_fields(cls, value, path, problems)


def json_object(value: object, path: str, problems: Problems) -> dict[str, Any]:
    """Any JSON object with finite numbers; a copy of its own."""
    if isinstance(value, Mapping):
        copied = _json_value(value, path, problems, 0)
        return copied if isinstance(copied, dict) else {}
    problems.refuse(path, value, "an object", f"not {kind(value)}")
    return {}


def _json_value(value: object, path: str, problems: Problems, depth: int) -> Any:
    if depth > _MOST_NESTED:
        problems.error(path, f"nested more than {_MOST_NESTED} deep")
    elif isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                problems.refuse(join(path, shown(key)), key, "a string as key", f"not {kind(key)}")
        return {k: _json_value(v, join(path, k), problems, depth + 1) for k, v in value.items() if isinstance(k, str)}
    elif isinstance(value, (list, tuple)):
        return [_json_value(v, join(path, i), problems, depth + 1) for i, v in enumerate(value)]
    elif isinstance(value, float) and not math.isfinite(value):
        problems.refuse(path, value, "a finite number")
    elif value is None or isinstance(value, (bool, int, float, str)):
        return value
    else:
        problems.refuse(path, value, "a JSON value", f"not {kind(value)}")
    return None


def _as_integer(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {int(value)}"
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 16:
        return f"a string; write {int(value)} without quotes"
    return f"not {kind(value)}"
