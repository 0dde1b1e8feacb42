"""Notices the step of torch's optimizers: before it, after each closure, and after it."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

import torch

from msmon_hooks import optimizer_steps
from msmon_hooks.hooks import Hook
from msmon_hooks.optimizer_steps import Arguments
from msmon_hooks.registrations import Registrations

_RUNS_HOOKS = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""The body of what `Optimizer.__init__` puts around the class's `step`: it runs the hooks."""


class OptimizerSteps(optimizer_steps.OptimizerSteps):
    """See `msmon_hooks.optimizer_steps.OptimizerSteps`."""

    _optimizer: weakref.ref[Any] | None = None
    """The one whose own hooks tell of its steps."""
    _nested = 0
    """Steps of base classes that are running."""

    def hook(self, optimizer: Any, registrations: Registrations) -> None:
        """By the optimizer's own hooks, which draw no warning from schedulers; else by wrapping the instance's
        `step`, which is given back at the end."""
        if _runs_hooks(optimizer):
            self._optimizer = weakref.ref(optimizer)
            registrations.add(optimizer.register_step_pre_hook(_Before(self)))
            registrations.add(optimizer.register_step_post_hook(_After(self)))
        else:
            super().hook(optimizer, registrations)

    # A compiled step must not trace what the monitor does: each new number would be compiled again.
    before = torch.compiler.disable(optimizer_steps.OptimizerSteps.before)
    evaluated = torch.compiler.disable(optimizer_steps.OptimizerSteps.evaluated)
    after = torch.compiler.disable(optimizer_steps.OptimizerSteps.after)

    def begins_inside(self) -> bool:
        """Whether the optimizer's `step` calls that of its base class, for which torch runs the hooks too."""
        inside = self.running and self._optimizer is not None and self._running_steps(self._optimizer()) > 1
        self._nested = self._nested + 1 if inside else 0
        return inside

    def ends_inside(self) -> bool:
        """Whether it is that of the base class which has ended."""
        inside = self._nested > 0
        self._nested -= inside
        return inside

    def forward_begins(self) -> None:
        """A training forward begins. Inside of a step it is that of a closure; else a step that did not end has raised:
        torch then runs no hook."""
        if self.running and self._optimizer is not None and not self._running_steps(self._optimizer()):
            self.raised()

    @staticmethod
    def _running_steps(optimizer: Any) -> int:
        """How many calls of an optimizer's `step` are running."""
        frame: FrameType | None = sys._getframe()
        count = 0
        while frame is not None:
            count += frame.f_code is _RUNS_HOOKS and frame.f_locals.get("self") is optimizer
            frame = frame.f_back
        return count


def _runs_hooks(optimizer: Any) -> bool:
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


class _Before(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        super().__init__(owner.guard)
        self.owner = owner

    __call__ = torch.compiler.disable(Hook.__call__)

    def fire(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if not self.owner.active or self.owner.begins_inside():
            return None
        # torch passes the optimizer itself as the first of the arguments.
        replaced = self.owner.before(args[1:], kwargs)
        return replaced and ((*args[:1], *replaced[0]), replaced[1])


class _After(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        super().__init__(owner.guard)
        self.owner = owner

    @torch.compiler.disable
    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Whatever has failed: steps are counted on.
        if self.owner.active and not self.owner.ends_inside():
            self.owner.after()
