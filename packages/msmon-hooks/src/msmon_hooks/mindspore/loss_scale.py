"""Loss scaling: by what gradients are multiplied, and which steps are skipped because of an overflow."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mindspore import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.mindspore.module_calls import ModuleCalls


class LossScale:
    """What the losses of the step in flight were multiplied by.

    Known are the scale that an optimizer was made with (``loss_scale=``, for a loss that is scaled by as much) and
    that of ``nn.TrainOneStepWithLossScaleCell``, which also skips updates.

    Args:
        optimizer: the monitored one.
    """

    def __init__(self, optimizer: Any) -> None:
        self.used = False
        """Whether losses were scaled."""
        self._optimizer = optimizer
        scale = getattr(optimizer, "loss_scale", 1.0)
        self._fixed = float(scale) if isinstance(scale, int | float) and scale != 1.0 else None
        self._current: Any = None

    def attach(self, calls: ModuleCalls, stepped: Callable[[], int], skipped: Callable[[], None]) -> None:
        """Watch the Cells that scale losses.

        Args:
            calls: takes the hooks.
            stepped: how many steps of the optimizer were seen so far.
            skipped: called when a Cell has not called the optimizer.
        """
        watched = _Watched(self, stepped, skipped)
        calls.add_class(nn.TrainOneStepWithLossScaleCell, _Begins(watched))
        calls.add_class(nn.TrainOneStepWithLossScaleCell, _Ends(watched))

    def begins(self, cell: Any) -> bool:
        """A Cell begins a step; returns whether it is one of the monitored optimizer."""
        if getattr(cell, "optimizer", None) is not self._optimizer:
            return False
        self._current, self.used = cell.scale_sense, True
        return True

    def of(self, gradient: Any) -> Any:
        """By what a gradient that a backward computes now is multiplied; None: by nothing."""
        return self._fixed if self._current is None else self._current

    def at_step(self) -> Any:
        """By what the gradients are multiplied that the optimizer is called with."""
        return self._fixed

    def between(self) -> Any:
        """Gradients stand nowhere outside of a step."""

    def step_ends(self) -> None:
        """The next loss may be one that nobody scales."""
        self._current = None

    def close(self) -> None:
        """Let go of the optimizer."""
        self._optimizer = self._current = None


class _Watched:
    """What the hooks of a class hold: it does not lead to the network."""

    def __init__(self, scale: LossScale, stepped: Callable[[], int], skipped: Callable[[], None]) -> None:
        self.scale = weakref.ref(scale)
        self.stepped = weakref.WeakMethod(stepped)
        self.skipped = weakref.WeakMethod(skipped)
        self.before: int | None = None


class _Begins(BeforeCall):
    def __init__(self, watched: _Watched) -> None:
        self.watched = watched

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        scale, stepped = self.watched.scale(), self.watched.stepped()
        ours = scale is not None and stepped is not None and scale.begins(module)
        self.watched.before = stepped() if ours and stepped is not None else None


class _Ends(AfterCall):
    def __init__(self, watched: _Watched) -> None:
        self.watched = watched

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        stepped, skipped = self.watched.stepped(), self.watched.skipped()
        if self.watched.before is None or stepped is None or skipped is None:
            return
        if stepped() == self.watched.before:
            skipped()
        self.watched.before = None
