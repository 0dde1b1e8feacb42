"""Loss scaling by torch's GradScaler: by what gradients are multiplied, and which steps it skips."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.wrappers import unwrapped_optimizer


class LossScale:
    """What the losses of the step in flight were multiplied by.

    A training script never shows its scaler to a monitor, so the methods `scale` and `step` of the class (and of
    subclasses that have their own) are wrapped while the hooks are in place. Nothing here waits for the device: the
    scale stays a tensor.

    Args:
        optimizer: the monitored one.
        stepped: how many steps of it were seen so far.
        skipped: called when a scaler's `step` has not called the monitored optimizer's.
    """

    def __init__(self, optimizer: Any, stepped: Callable[[], int], skipped: Callable[[], None]) -> None:
        self.stepped = stepped
        self.skipped = skipped
        self._optimizer = optimizer
        self._scaler: Any = None

    def attach(self, registrations: Registrations) -> None:
        """Wrap the scalers' methods; `registrations` takes the wrappers off again."""
        patches = Registrations()
        for scaler in _scaler_classes():
            if "scale" in vars(scaler):
                patches.patch(scaler, "scale", functools.partial(_scaling, weakref.ref(self)))
            if "step" in vars(scaler):
                patches.patch(scaler, "step", functools.partial(_stepping, weakref.ref(self)))
        registrations.callback(patches.close)
        registrations.callback(self._close)
        # A class outlives every model: what sits on it must not keep the monitor alive, and goes when that does.
        weakref.finalize(self, patches.close).atexit = False

    def of(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """By what a gradient that a backward computes now is multiplied; None: by nothing."""
        scale = getattr(self._scaler, "_scale", None)
        if not isinstance(scale, torch.Tensor):
            return None
        return scale if scale.device == gradient.device else scale.to(gradient.device, non_blocking=True)

    def at_step(self) -> torch.Tensor | None:
        """By what the gradients are still multiplied that the optimizer's step is given: fused optimizers undo the
        scaling themselves."""
        scale = getattr(self._optimizer, "grad_scale", None)
        return scale if isinstance(scale, torch.Tensor) else None

    def between(self) -> torch.Tensor | None:
        """By what `param.grad` is multiplied outside of a step: the scale, unless `unscale_` was called."""
        states = getattr(self._scaler, "_per_optimizer_states", {})
        state = states.get(id(self._optimizer), {})
        unscaled = getattr(state.get("stage"), "name", "READY") == "UNSCALED"
        scale = getattr(self._scaler, "_scale", None)
        return None if unscaled or not isinstance(scale, torch.Tensor) else scale

    def found_inf(self) -> torch.Tensor | None:
        """While a fused optimizer steps: a number that is greater than 0 if it skips the update; else None."""
        found = getattr(self._optimizer, "found_inf", None)
        return found if isinstance(found, torch.Tensor) else None

    def step_ends(self) -> None:
        """The next loss may be one that nobody scales."""
        self._scaler = None

    def scaled_by(self, scaler: Any) -> None:
        """A scaler has multiplied a loss."""
        if self._optimizer is not None and scaler.is_enabled():
            self._scaler = scaler

    def watches(self, optimizer: Any) -> bool:
        """Whether the optimizer is the monitored one."""
        return self._optimizer is not None and unwrapped_optimizer(optimizer) is self._optimizer

    def _close(self) -> None:
        self._scaler = self._optimizer = None


def _scaling(owner: weakref.ref[LossScale], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = original(scaler, *args, **kwargs)
        if (losses := owner()) is not None:
            losses.scaled_by(scaler)
        return scaled

    return scale


def _stepping(owner: weakref.ref[LossScale], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        losses = owner()
        if losses is None or not losses.watches(optimizer):
            result = original(scaler, optimizer, *args, **kwargs)
        else:
            before = losses.stepped()
            result = original(scaler, optimizer, *args, **kwargs)
            if losses.watches(optimizer) and losses.stepped() == before:
                losses.skipped()
        if losses is not None:
            # Whoever's step it was: the backward of the loss that was scaled is over.
            losses.step_ends()
        return result

    return step


def _scaler_classes() -> Iterator[type]:
    """GradScaler and its subclasses, as far as they are loaded."""
    base = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    waiting = [base]
    while waiting:
        scaler = waiting.pop()
        yield scaler
        waiting += scaler.__subclasses__()
