"""Notices the step of torch's optimizers: before it, after each closure, and after it."""

from __future__ import annotations

from typing import Any

import torch

from msmon_hooks import optimizer_steps
from msmon_hooks.hooks import Hook
from msmon_hooks.optimizer_steps import Arguments
from msmon_hooks.registrations import Registrations


class OptimizerSteps(optimizer_steps.OptimizerSteps):
    """See `msmon_hooks.optimizer_steps.OptimizerSteps`."""

    def hook(self, optimizer: Any, registrations: Registrations) -> None:
        """By the optimizer's own hooks, which draw no warning from schedulers; else by wrapping the instance's
        `step`, which is given back at the end."""
        if _runs_hooks(optimizer):
            registrations.add(optimizer.register_step_pre_hook(_Before(self)))
            registrations.add(optimizer.register_step_post_hook(_After(self)))
        else:
            super().hook(optimizer, registrations)

    # A compiled step must not trace what the monitor does: each new number would be compiled again.

    @torch.compiler.disable
    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A step begins; returns other arguments where there is a closure."""
        return super().before(args, kwargs)

    @torch.compiler.disable
    def evaluated(self) -> None:
        """A closure has computed the gradients."""
        super().evaluated()

    @torch.compiler.disable
    def after(self, result: Any = None) -> None:
        """A step has ended."""
        super().after(result)


def _runs_hooks(optimizer: Any) -> bool:
    """Whether calling `step` runs the hooks that `register_step_pre_hook` takes.

    `Optimizer.__init__` wraps the class's `step` for that and marks it; wrappers that only inherit from
    `Optimizer` do not call it. `torch.compile` of torch 2.1 takes torch's wrapper off and leaves the mark.
    """
    step = getattr(type(optimizer), "step", None)
    if not hasattr(optimizer, "register_step_pre_hook") or not getattr(step, "hooked", False):
        return False
    runs_hooks = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
    while step is not None and getattr(step, "__code__", None) is not runs_hooks:
        step = getattr(step, "__wrapped__", None)
    return step is not None


class _Before(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        # torch passes the optimizer itself as the first of the arguments.
        replaced = self.owner.before(args[1:], kwargs) if self.owner.active else None
        return replaced and ((*args[:1], *replaced[0]), replaced[1])


class _After(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.owner.active:
            self.owner.after()
