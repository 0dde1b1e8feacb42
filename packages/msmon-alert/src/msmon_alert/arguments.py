"""Checks of rule arguments; every problem of a rule is in one message."""

from __future__ import annotations

import math
from typing import Any


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    integer: bool = False,
    optional: bool = False,
) -> str | None:
    """None for a good value, else a sentence: which argument, its value, what is allowed."""
    if value is None and optional:
        return None
    wanted = "an integer" if integer else "a number"
    limits = [
        f"{word} {limit:g}" for word, limit in ((">", above), (">=", at_least), ("<=", at_most)) if limit is not None
    ]
    allowed = " ".join([wanted, " and ".join(limits)]).strip() + (" or null" if optional else "")
    right_type = isinstance(value, int if integer else (int, float)) and not isinstance(value, bool)
    if (
        not right_type
        or not math.isfinite(value)
        or (above is not None and value <= above)
        or (at_least is not None and value < at_least)
        or (at_most is not None and value > at_most)
    ):
        return f"{name}: {value!r} is not allowed; it takes {allowed}"
    return None


def require(*problems: str | None) -> None:
    """ValueError with all problems, one a line, if there is any."""
    found = [problem for problem in problems if problem]
    if found:
        raise ValueError("\n".join(found))
