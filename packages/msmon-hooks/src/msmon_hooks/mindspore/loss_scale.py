"""Loss scaling: by what gradients are multiplied, and which steps are skipped because of an overflow."""

from __future__ import annotations

import weakref
from typing import Any

from mindspore import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.mindspore.call_hooks import CallHooks
from msmon_hooks.optimizer_group import members
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.registrations import Registrations
from msmon_hooks.step_calls import StepCalls

_SCALES_DIFFER = (
    "the optimizers were made with loss_scale %s: gradients that a backward computes are recorded as they are, since "
    "none says whose loss it is of"
)


class LossScale:
    """What the losses of the step in flight were multiplied by.

    Known are the scale that an optimizer was made with (`loss_scale=`, for a loss that is scaled by as much) and
    that of `nn.TrainOneStepWithLossScaleCell`, which also skips updates.

    Args:
        guard: what goes off when watching the Cells fails.
        steps: of the monitored optimizer; a Cell's step that has not called the optimizer is one too.
    """

    def __init__(self, guard: Guarded, steps: OptimizerSteps[Any]) -> None:
        self.guard = guard
        self._steps = steps
        self._fixed: dict[int, float] = {}
        """By `id` of the optimizer."""
        self._common: float | None = None
        self._current: Any = None
        self._running: StepCalls | None = None
        """Of the optimizer of the Cell whose step runs."""
        self._calls_before = 0

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """Watch the Cells that scale losses; `registrations` end it."""
        self.follow(optimizer)
        call_hooks = CallHooks()
        registrations.callback(call_hooks.close)
        registrations.callback(self._close)
        call_hooks.add_class(nn.TrainOneStepWithLossScaleCell, _Begins(self))
        call_hooks.add_class(nn.TrainOneStepWithLossScaleCell, _Ends(self))

    def follow(self, optimizer: Any) -> None:
        """Another optimizer minimizes them from now on."""
        scales = {id(one): getattr(one, "loss_scale", 1.0) for one in members(optimizer)}
        self._fixed = {key: float(scale) for key, scale in scales.items() if isinstance(scale, int | float)}
        different = sorted(set(self._fixed.values()))
        self._common = different[0] if len(different) == 1 and different != [1.0] else None
        if len(different) > 1:
            logger.warning(_SCALES_DIFFER, " and ".join(map(str, different)))

    def begins(self, cell: Any) -> None:
        """A Cell begins a step, perhaps one of a monitored optimizer."""
        self._running = self._steps.given(getattr(cell, "optimizer", None))
        if self._running is not None:
            self._current = cell.scale_sense
            self._calls_before = self._running.count

    def ends(self) -> None:
        """A Cell has ended its step."""
        running, self._running = self._running, None
        if running is not None:
            self._current = None
            if running.count == self._calls_before:
                self._steps.skipped(running.optimizer())

    def of(self, gradient: Any) -> Any:
        """By what a gradient that a backward computes now is multiplied; None: by nothing."""
        return self._common if self._current is None else self._current

    def at_step(self) -> Any:
        """By what the gradients are multiplied that the optimizer is called with."""
        scale = self._fixed.get(id(self._steps.stepping), 1.0)
        return None if scale == 1.0 else scale

    def between(self) -> Any:
        """Gradients stand nowhere outside of a step."""

    def found_inf(self) -> None:
        """MindSpore's optimizers skip no updates by themselves."""

    def step_ends(self) -> None:
        """The next loss may be one that nobody scales."""
        self._current = None

    def _close(self) -> None:
        self._running = self._current = None


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
