"""Collects what is wrong with a configuration, and says it in one form."""

import difflib
import json
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from msmon_alert import printable

_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_SHOWN_CHARACTERS = 80
_LISTED_PROBLEMS = 100
_KINDS: dict[Any, str] = {
    type(None): "null",
    bool: "a boolean",  # before int, which it is too
    int: "an integer",
    float: "a floating-point number",
    str: "a string",
    (list, tuple): "a list",
    dict: "an object",
}


class ConfigError(ValueError):
    """A configuration that cannot be used. The one message lists every problem with its key path and the way out."""


class Problems:
    """The problems and warnings found so far. `source` is the file they belong to."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def error(self, path: str, text: str) -> None:
        self.errors.append(f"{path}: {text}" if path else text)

    def warn(self, path: str, text: str) -> None:
        self.warnings.append(f"{path}: {text}")

    def refuse(self, path: str, value: object, allowed: str, note: str = "") -> None:
        """Record that `value` at `path` is not one of the `allowed` ones; `note` is the way out, if one is known."""
        self.error(path, f"{shown(value)} is refused, expected {allowed}" + (f" ({note})" if note else ""))

    def unknown_key(self, path: str, key: object, known: Iterable[str], elsewhere: Iterable[str] = ()) -> None:
        """Record a key that has no meaning here; `elsewhere` are full paths at which it would have one."""
        names = list(known)
        where = join(path, key)
        place = next((p for p in elsewhere if p.rpartition(".")[2] == key), None)
        near = place or nearest(key, names)
        hint = f"did you mean {shown(near)}?" if near else f"the known keys are {', '.join(names)}"
        self.error(where, f"unknown key, {hint}")

    def raise_if_any(self) -> None:
        if not self.errors:
            return
        count = len(self.errors)
        lines = [f"{self.source}: {count} problem{'s' if count > 1 else ''} in the configuration"]
        lines += [f"  {error}" for error in self.errors[:_LISTED_PROBLEMS]]
        if count > _LISTED_PROBLEMS:
            lines.append(f"  and {count - _LISTED_PROBLEMS} more")
        raise ConfigError("\n".join(lines))


def join(path: str, key: object) -> str:
    """The path of `key` inside `path`: `alert.dump`, `alert.rules[1]`, `targets["0:fc1"]`."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"{path}[{key}]"
    if isinstance(key, str) and _PLAIN_KEY.match(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{shown(key)}]"


def shown(value: object) -> str:
    """`value` as it would stand in the file, on one line and cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = reprlib.repr(value)
    text = printable(text[:200])
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def kind(value: object) -> str:
    """The JSON name of a value's type, with its article."""
    names = (name for types, name in _KINDS.items() if isinstance(value, types))
    return next(names, f"a Python {type(value).__name__}")


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a misspelling of, or None."""
    if not isinstance(word, str):
        return None
    folded = {name.lower(): name for name in known}
    asked = word[:200].strip().lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(asked, folded, n=1, cutoff=0.7)
    return folded[close[0]] if close else None
