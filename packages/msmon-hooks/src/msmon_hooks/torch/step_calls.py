"""Calls of one optimizer's `step`: where they begin, where they end, and which are those of a base class inside."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from msmon_hooks import step_calls
from msmon_hooks.step_calls import Owner
from msmon_hooks.torch.nested_optimizers import param_groups

_RUNS_HOOKS = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""The body of what `Optimizer.__init__` puts around the class's `step`: it runs the hooks."""


class StepCalls(step_calls.StepCalls):
    """See `msmon_hooks.step_calls.StepCalls`."""

    def __init__(self, owner: Owner, optimizer: Any) -> None:
        super().__init__(owner, optimizer, (one for group in param_groups(optimizer) for one in group["params"]))
        self.runs_hooks = runs_hooks(optimizer)
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
        self._nested = 0

    # A compiled step must not trace what the monitor does: each new number would be compiled again.
    before = torch.compiler.disable(step_calls.StepCalls.before)
    after = torch.compiler.disable(step_calls.StepCalls.after)

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
