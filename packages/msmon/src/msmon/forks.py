"""The monitors of this process; in forked children, workers of a data loader for instance, they are none."""

from __future__ import annotations

import os
import weakref
from typing import Any

_alive: weakref.WeakSet[Any] = weakref.WeakSet()


def leave_in_children(monitor: Any) -> None:
    """Have `monitor.leave_child()` called in every child that is forked while the monitor lives."""
    _alive.add(monitor)


def alive_monitors() -> list[Any]:
    """Those that were made in this process and still exist."""
    return list(_alive)


def _leave() -> None:
    for monitor in alive_monitors():
        monitor.leave_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
