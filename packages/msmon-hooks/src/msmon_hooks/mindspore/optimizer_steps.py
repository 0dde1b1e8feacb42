"""Notices the step of MindSpore's optimizers, which is a call with gradients, and the `step()` of an adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
from mindspore import nn

from msmon_hooks import optimizer_steps
from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.mindspore.call_hooks import CallHooks
from msmon_hooks.mindspore.moments import parameters_of
from msmon_hooks.registrations import Registrations
from msmon_hooks.step_calls import StepCalls


class OptimizerSteps(optimizer_steps.OptimizerSteps[StepCalls]):
    """See `msmon_hooks.optimizer_steps.OptimizerSteps`."""

    def hook(self, optimizer: Any, registrations: Registrations) -> StepCalls:
        """By watching calls of the optimizer; else by wrapping the instance's `step`, which is given back."""
        calls = StepCalls(self, optimizer, parameters_of(optimizer))
        if is_called_with_gradients(optimizer):
            call_hooks = CallHooks()
            registrations.callback(call_hooks.close)
            call_hooks.add(optimizer, _Before(calls))
            call_hooks.add(optimizer, _After(calls))
            call_hooks.add(optimizer, _Raised(calls))
        else:
            calls.wrap(optimizer, registrations)
        return calls


def is_called_with_gradients(optimizer: Any) -> bool:
    """Whether a step is a call of the optimizer, as with all of MindSpore's own."""
    return isinstance(optimizer, nn.Cell) and type(optimizer).construct is not nn.Cell.construct


def gradients_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any] | None:
    """The gradients among the arguments of a step, or None where there are none."""
    value = args[0] if args else next(iter(kwargs.values()), None)
    if isinstance(value, mindspore.Tensor):
        return (value,)
    return value if isinstance(value, list | tuple) else None


class _Before(BeforeCall):
    def __init__(self, calls: StepCalls) -> None:
        super().__init__(calls.guard)
        self.calls = calls

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.calls.active:
            self.calls.before(args, kwargs)


class _After(AfterCall):
    def __init__(self, calls: StepCalls) -> None:
        super().__init__(calls.guard)
        self.calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        # Whatever has failed: steps are counted on.
        if self.calls.active:
            self.calls.after()


class _Raised(AfterCall):
    """Behind `_After`, so that a step that is still running has raised."""

    always = True

    def __init__(self, calls: StepCalls) -> None:
        super().__init__(calls.guard)
        self.calls = calls

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.calls.raised()
