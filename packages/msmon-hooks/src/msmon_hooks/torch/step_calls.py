"""Calls of one optimizer's `step`: where they begin, where they end, and which are those of a base class inside."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch

from msmon_hooks.guard import Guarded
from msmon_hooks.optimizer_steps import Arguments
from msmon_hooks.torch.nested_optimizers import param_groups

_RUNS_HOOKS = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""The body of what `Optimizer.__init__` puts around the class's `step`: it runs the hooks."""


class Owner(Protocol):
    """Is told of calls."""

    guard: Guarded
    active: bool

    def call_begins(self, calls: StepCalls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """An optimizer's `step` is called; returns other arguments where there is a closure."""

    def call_ends(self, calls: StepCalls, result: Any) -> None:
        """It has returned."""

    def call_raised(self, calls: StepCalls) -> None:
        """It has raised."""


class StepCalls:
    """What is known of one optimizer, and whether its `step` is running. Does not keep the optimizer alive."""

    def __init__(self, owner: Owner, optimizer: Any) -> None:
        self.guard = owner.guard
        self.optimizer: Callable[[], Any] = _reference(optimizer)
        self.runs_hooks = runs_hooks(optimizer)
        self.parameters = frozenset(id(one) for group in param_groups(optimizer) for one in group["params"])
        """`id` of what it trains."""
        self.count = 0
        """Calls that have ended."""
        self.running = False
        self.given = False
        """Whether its steps are those of the training."""
        self.beside = False
        """Whether it steps beside the one whose steps are those of the training."""
        self.delegates = False
        """Whether it leaves the update to optimizers inside of it."""
        self.proved = False
        """Whether one of them was seen to step in a call."""
        self.versions: int | None = None
        """Of the weights when the call began, until it is proved."""
        self.updated = False
        """Whether one inside has stepped in this call."""
        self.ignored = False
        """Whether this call is no step."""
        self.inside: list[StepCalls] | None = None
        """The optimizers inside of it, once they were looked for."""
        self.competes: bool | None = None
        """Whether it trains what the given ones train, once that was asked."""
        self._owner = weakref.ref(owner)
        self._nested = 0

    @property
    def active(self) -> bool:
        """Whether anybody wants to know."""
        owner = self._owner()
        return owner is not None and owner.active

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A call begins; returns other arguments where there is a closure."""
        owner = self._owner()
        if owner is None or self._begins_inside():
            return None
        self.raised()
        self.running = True
        self.updated = self.ignored = False
        return owner.call_begins(self, args, kwargs)

    def ends(self, result: Any = None) -> None:
        """A call has ended."""
        owner = self._owner()
        if owner is None or self._ends_inside():
            return
        self.running = False
        self.count += 1
        self.guard.always(owner.call_ends, self, result)

    # A compiled step must not trace what the monitor does: each new number would be compiled again.
    before = torch.compiler.disable(begins)
    after = torch.compiler.disable(ends)

    def raised(self) -> None:
        """The call that is running, if there is one, has raised: it is over, and nothing else says so."""
        owner = self._owner()
        if self.running and owner is not None:
            self.running = False
            self.guard.always(owner.call_raised, self)

    def check_raised(self) -> None:
        """Torch runs no hook where a step raises: it has, if it is not among the callers."""
        if self.running and self.runs_hooks and not self._depth():
            self.raised()

    def _begins_inside(self) -> bool:
        """Whether the optimizer's `step` calls that of its base class, for which torch runs the hooks too."""
        inside = self.running and self.runs_hooks and self._depth() > 1
        self._nested = self._nested + 1 if inside else 0
        return inside

    def _ends_inside(self) -> bool:
        """Whether it is that of the base class which has ended."""
        inside = self._nested > 0
        self._nested -= inside
        return inside

    def _depth(self) -> int:
        """How many calls of the optimizer's `step` are running."""
        optimizer = self.optimizer()
        frame: FrameType | None = sys._getframe()
        calls = 0
        while frame is not None:
            calls += frame.f_code is _RUNS_HOOKS and frame.f_locals.get("self") is optimizer
            frame = frame.f_back
        return calls


def _reference(optimizer: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # an object with slots of its own
        return lambda: optimizer


def runs_hooks(optimizer: Any) -> bool:
    """Whether calling `step` runs the hooks that `register_step_pre_hook` takes.

    `Optimizer.__init__` wraps the class's `step` for that and marks it; wrappers that only inherit from
    `Optimizer` do not call it. `torch.compile` of torch 2.1 takes torch's wrapper off and leaves the mark.
    """
    step = getattr(type(optimizer), "step", None)
    if not hasattr(optimizer, "register_step_pre_hook") or not getattr(step, "hooked", False):
        return False
    while step is not None and getattr(step, "__code__", None) is not _RUNS_HOOKS:
        step = getattr(step, "__wrapped__", None)
    return step is not None
