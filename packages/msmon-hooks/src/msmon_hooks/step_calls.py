"""Calls of one optimizer's `step`: where they begin, where they end, and whether one has raised."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Set
from typing import Any, Protocol

from msmon_hooks.guard import Guarded
from msmon_hooks.registrations import Registrations

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Owner(Protocol):
    """Is told of calls."""

    guard: Guarded
    active: bool
    """Whether it wants to know."""

    def call_begins(self, calls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """An optimizer's `step` is called; returns other arguments where there is a closure."""

    def call_ends(self, calls: Any, result: Any) -> None:
        """It has returned."""

    def call_raised(self, calls: Any) -> None:
        """It has raised."""


class StepCalls:
    """What is known of one optimizer, and whether its `step` is running. Does not keep the optimizer alive.

    Args:
        owner: is told of calls.
        optimizer: whose.
        parameters: what it trains, in its order.
    """

    def __init__(self, owner: Owner, optimizer: Any, parameters: Iterable[Any]) -> None:
        self.guard = owner.guard
        self.optimizer = _reference(optimizer)
        self.parameters: Set[int] = dict.fromkeys(map(id, parameters)).keys()
        """`id` of what it trains, in its order."""
        self.count = 0
        """Calls that have ended."""
        self.running = False
        self._owner = weakref.ref(owner)

    def wrap(self, optimizer: Any, registrations: Registrations) -> None:
        """Notice calls by wrapping the instance's `step`; `registrations` give it back."""
        registrations.patch(optimizer, "step", functools.partial(Step, self))

    @property
    def active(self) -> bool:
        """Whether anybody wants to know."""
        owner = self._owner()
        return owner is not None and owner.active

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A call begins; returns other arguments where there is a closure."""
        owner = self._owner()
        if owner is None or self._begins_inside():
            return None
        self.raised()
        self.running = True
        return owner.call_begins(self, args, kwargs)

    def after(self, result: Any = None) -> None:
        """A call has ended."""
        owner = self._owner()
        if owner is None or self._ends_inside():
            return
        self.running = False
        self.count += 1
        self.guard.always(owner.call_ends, self, result)

    def raised(self) -> None:
        """The call that is running, if there is one, has raised: it is over, and nothing else says so."""
        owner = self._owner()
        if self.running and owner is not None:
            self.running = False
            self.guard.always(owner.call_raised, self)

    def _begins_inside(self) -> bool:
        """Whether what begins is not a call by the program, but one inside of the call that is running."""
        return False

    def _ends_inside(self) -> bool:
        """Whether such a one has ended."""
        return False


def _reference(optimizer: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # an object with slots of its own
        return lambda: optimizer


class Step:
    """Stands in an optimizer for its `step`. In a copy of that optimizer stands the copy's own `step`, or the copy
    would update the weights of the original."""

    def __init__(self, calls: StepCalls, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.calls = calls
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls = self.calls
        if not calls.active:
            return self.original(*args, **kwargs)
        replaced = calls.guard.run(calls.before, args, kwargs)
        args, kwargs = (args, kwargs) if replaced is None else replaced
        try:
            result = self.original(*args, **kwargs)
        except Exception:
            calls.raised()
            raise
        calls.after(result)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        # Where the optimizer is being copied, the first argument is the copy, which has no attributes of its own yet.
        original = self.original
        while isinstance(original, Step):
            original = original.original
        owner = getattr(original, "__self__", None)
        return (functools.partial, (original,)) if owner is None else (getattr, (owner, "step"))
