"""Notices that a backward runs parts of the forward again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from msmon_hooks.mindspore.executor import executor
from msmon_hooks.registrations import Registrations

_running = threading.local()
_lock = threading.Lock()
_patches = Registrations()
_users = 0


def in_backward() -> bool:
    """Whether a Cell that runs now in this thread is run again by a backward."""
    return bool(getattr(_running, "depth", 0))


def watch(registrations: Registrations) -> None:
    """Have `in_backward` know, until `registrations` are closed.

    Both ways of recomputing are private to MindSpore. One that a version does not have is not used by it either.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _install()
    registrations.callback(_release)


def _release() -> None:
    global _users
    with _lock:
        _users -= 1
        if not _users:
            _patches.close()


def _install() -> None:
    if hasattr(executor, "set_is_run_recompute"):
        _patches.patch(executor, "set_is_run_recompute", _marking)
    from mindspore.common import recompute

    handle = getattr(recompute, "_RecomputeHandle", None)
    if hasattr(handle, "recompute"):
        _patches.patch(handle, "recompute", _around)


def _marking(original: Callable[[bool], Any]) -> Callable[[bool], Any]:
    """Recomputation by a backward function of its own: the executor is told when it begins and when it ends."""

    @functools.wraps(original)
    def set_is_run_recompute(status: bool) -> Any:
        _running.depth = max(getattr(_running, "depth", 0) + (1 if status else -1), 0)
        return original(status)

    return set_is_run_recompute


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    """Recomputation when a saved tensor is asked for."""

    @functools.wraps(original)
    def recompute(*args: Any, **kwargs: Any) -> Any:
        _running.depth = getattr(_running, "depth", 0) + 1
        try:
            return original(*args, **kwargs)
        finally:
            _running.depth -= 1

    return recompute
