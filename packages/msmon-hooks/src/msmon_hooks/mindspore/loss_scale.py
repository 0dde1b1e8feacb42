"""Loss scaling: by what gradients are multiplied, and which steps are skipped because of an overflow."""

from __future__ import annotations

import weakref
from typing import Any

from mindspore import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.guard import Guarded
from msmon_hooks.mindspore.call_hooks import CallHooks
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.registrations import Registrations


class LossScale:
    """What the losses of the step in flight were multiplied by.

    Known are the scale that an optimizer was made with (`loss_scale=`, for a loss that is scaled by as much) and
    that of `nn.TrainOneStepWithLossScaleCell`, which also skips updates.

    Args:
        guard: what goes off when watching the Cells fails.
        steps: of the monitored optimizer; a Cell's step that has not called the optimizer is one too.
    """

    def __init__(self, guard: Guarded, steps: OptimizerSteps) -> None:
        self.guard = guard
        self._steps = steps
        self._optimizer: Any = None
        self._fixed: float | None = None
        self._current: Any = None
        self._steps_before: int | None = None

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """Watch the Cells that scale losses; `registrations` end it."""
        self._optimizer = optimizer
        scale = getattr(optimizer, "loss_scale", 1.0)
        self._fixed = float(scale) if isinstance(scale, int | float) and scale != 1.0 else None
        call_hooks = CallHooks()
        registrations.callback(call_hooks.close)
        registrations.callback(self._close)
        call_hooks.add_class(nn.TrainOneStepWithLossScaleCell, _Begins(self))
        call_hooks.add_class(nn.TrainOneStepWithLossScaleCell, _Ends(self))

    def follow(self, optimizer: Any) -> None:
        """Another optimizer minimizes them from now on."""
        self._optimizer = optimizer

    def begins(self, cell: Any) -> None:
        """A Cell begins a step, perhaps one of the monitored optimizer."""
        self._steps_before = None
        if self._optimizer is not None and getattr(cell, "optimizer", None) is self._optimizer:
            self._current = cell.scale_sense
            self._steps_before = self._steps.count

    def ends(self) -> None:
        """A Cell has ended its step."""
        before, self._steps_before = self._steps_before, None
        if before is not None and self._optimizer is not None and self._steps.count == before:
            self._steps.skipped()

    def of(self, gradient: Any) -> Any:
        """By what a gradient that a backward computes now is multiplied; None: by nothing."""
        return self._fixed if self._current is None else self._current

    def at_step(self) -> Any:
        """By what the gradients are multiplied that the optimizer is called with."""
        return self._fixed

    def between(self) -> Any:
        """Gradients stand nowhere outside of a step."""

    def found_inf(self) -> None:
        """MindSpore's optimizers skip no updates by themselves."""

    def step_ends(self) -> None:
        """The next loss may be one that nobody scales."""
        self._current = None

    def _close(self) -> None:
        self._optimizer = self._current = None


class _OfClass:
    """A class outlives every network: what sits on it must not lead to one."""

    def __init__(self, owner: LossScale) -> None:
        self.guard = Guarded("scaled losses")
        self.owner = weakref.ref(owner)


class _Begins(_OfClass, BeforeCall):
    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if (owner := self.owner()) is not None:
            owner.guard.run(owner.begins, module)


class _Ends(_OfClass, AfterCall):
    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if (owner := self.owner()) is not None:
            owner.guard.run(owner.ends)
