"""Checks of rule arguments; every problem of a rule is in one message."""

from __future__ import annotations

import math
import operator
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
    every = ((">", above, operator.gt), (">=", at_least, operator.ge), ("<=", at_most, operator.le))
    limits = [(word, limit, holds) for word, limit, holds in every if limit is not None]
    right_type = isinstance(value, int if integer else (int, float)) and not isinstance(value, bool)
    if right_type and math.isfinite(value) and all(holds(value, limit) for _, limit, holds in limits):
        return None
    allowed = " ".join([wanted, " and ".join(f"{word} {limit:g}" for word, limit, _ in limits)]).strip()
    return f"{name}: {value!r} is not allowed; it takes {allowed}{' or null' if optional else ''}"


def require(*problems: str | None) -> None:
    """ValueError with all problems, one a line, if there is any."""
    found = [problem for problem in problems if problem]
    if found:
        raise ValueError("\n".join(found))
