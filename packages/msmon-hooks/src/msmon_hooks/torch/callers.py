"""Who has called what runs now."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FrameType


def is_called_in(module: str, functions: Collection[str] = ()) -> bool:
    """Whether a function of a module, or one of some, is among the callers.

    Example:
        >>> is_called_in("doctest"), is_called_in("doctest", ["no_such_function"])
        (True, False)
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module and (not functions or frame.f_code.co_name in functions):
            return True
        frame = frame.f_back
    return False
