"""When an asynchronous collective has arrived: after `wait`, and not before."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from msmon_hooks.guard import Guarded
from msmon_hooks.interception import intercept
from msmon_hooks.registrations import Registrations

Arrived = Callable[[], None]
_METHODS = ("wait", "synchronize", "block_current_stream")


class _Waits:
    """What is to be done when a piece of work, or the result of a functional collective, is waited for.

    There is one of them, however many listen: it patches a class of torch.
    """

    def __init__(self) -> None:
        self._users = 0
        self._guard = Guarded("results of collectives")
        self._owned = Registrations()
        self._works: weakref.WeakKeyDictionary[Any, list[Arrived]] = weakref.WeakKeyDictionary()
        self._results: dict[int, tuple[weakref.ref[torch.Tensor], Arrived]] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Patch `Work` and `wait_tensor`, unless they are."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._guard = Guarded("results of collectives")
            work = torch.distributed.Work
            for name in _METHODS:
                if hasattr(work, name):
                    self._owned.patch(work, name, self._waiting)
            functional = _functional()
            if functional is not None:
                self._owned.callback(intercept(functional.wait_tensor, self._waiting_for_result, nested=True))

    def remove(self) -> None:
        """Give the class back when nobody listens any more."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._owned.close()
                self._works.clear()
                self._results.clear()

    def after_work(self, work: Any, arrived: Arrived) -> None:
        """Call `arrived` when `work` has been waited for."""
        self._works.setdefault(work, []).append(arrived)

    def after_result(self, result: torch.Tensor, arrived: Arrived) -> None:
        """Call `arrived` when a functional collective's result is used."""
        inner = getattr(result, "elem", result)
        self._results[_storage(inner)] = (weakref.ref(inner), arrived)

    def forget_results(self) -> None:
        """Results that nobody has used by the end of the step."""
        self._results.clear()

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        waits = self

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            waits._guard.run(waits._work_arrived, work)
            return result

        return wait

    def _work_arrived(self, work: Any) -> None:
        for arrived in self._works.pop(work, ()):
            arrived()

    def _waiting_for_result(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        if self._results and args and isinstance(args[0], torch.Tensor):
            self._guard.run(self._result_arrived, args[0])
        return result

    def _result_arrived(self, result: torch.Tensor) -> None:
        entry = self._results.pop(_storage(result), None)
        if entry is not None and entry[0]() is not None:
            entry[1]()


waits = _Waits()


class Coalescing(threading.local):
    """The block of coalesced collectives that this thread is in: results are there when the block has ended."""

    def __init__(self) -> None:
        self.pending: list[Arrived] | None = None

    @contextlib.contextmanager
    def around(self, block: Any, guard: Guarded) -> Iterator[Any]:
        """Stands for torch's `_coalescing_manager`."""
        outer, self.pending = self.pending, []
        try:
            with block as manager:
                yield manager
            for arrived in self.pending:
                guard.run(after, getattr(manager, "works", None), arrived)
        finally:
            self.pending = outer


def after(waitable: Any, arrived: Arrived) -> None:
    """Call `arrived` when `waitable` has been waited for: at once, if there is nothing to wait for.

    Args:
        waitable: what a collective returned: a piece of work or a list of them, the result of a functional
            collective, or anything else, which means that the call was synchronous.
    """
    listed = list(waitable) if isinstance(waitable, list | tuple) else [waitable]
    works = [work for work in listed if isinstance(work, torch.distributed.Work)]
    if works:
        waits.after_work(works[-1], arrived)
    elif hasattr(waitable, "trigger_wait"):
        waits.after_result(waitable, arrived)
    else:
        arrived()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _functional() -> Any:
    with contextlib.suppress(ImportError):
        from torch.distributed import _functional_collectives

        return _functional_collectives
    return None
