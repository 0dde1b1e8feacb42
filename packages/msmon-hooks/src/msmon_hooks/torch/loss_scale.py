"""Loss scaling by torch's GradScaler: by what gradients are multiplied, and which steps it skips."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from msmon_hooks.guard import Guarded
from msmon_hooks.optimizer_group import members
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.optimizer_steps import OptimizerSteps
from msmon_hooks.torch.wrappers import unwrapped_optimizer


class LossScale:
    """What the losses of the step in flight were multiplied by.

    A training script never shows its scaler to a monitor, so the methods `scale` and `step` of the class (and of
    subclasses that have their own) are wrapped while the hooks are in place. Nothing here waits for the device: the
    scale stays a tensor; where gradients lie in the memory of the host and the losses do not, a copy to the host
    begins when a loss is scaled, and is there before any gradient of that loss.

    Args:
        guard: what goes off when what the wrappers do fails.
        steps: of the monitored optimizer; a scaler's `step` that has not called the optimizer's is one too.
    """

    def __init__(self, guard: Guarded, steps: OptimizerSteps) -> None:
        self.guard = guard
        self.steps = steps
        self._optimizer: Any = None
        self._scaler: Any = None
        self._has_host_parameters: bool | None = None
        self._on_host: Callable[[], float] | None = None

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """Wrap the scalers' methods; `registrations` take the wrappers off again."""
        patches = Registrations()
        for scaler in _scaler_classes():
            if "scale" in vars(scaler):
                patches.patch(scaler, "scale", functools.partial(_scaling, weakref.ref(self)))
            if "step" in vars(scaler):
                patches.patch(scaler, "step", functools.partial(_stepping, weakref.ref(self)))
        self.follow(optimizer)
        registrations.callback(patches.close)
        registrations.callback(self._close)
        # A class outlives every model: what sits on it must not keep the monitor alive, and goes when that does.
        weakref.finalize(self, patches.close).atexit = False

    def follow(self, optimizer: Any) -> None:
        """Another optimizer minimizes them from now on."""
        self._optimizer = optimizer
        self._has_host_parameters = None

    def of(self, gradient: torch.Tensor) -> torch.Tensor | float | None:
        """By what a gradient that a backward computes now is multiplied; None: by nothing."""
        scale = self._scale
        if scale is None or scale.device == gradient.device:
            return scale
        if gradient.device.type == "cpu" and self._on_host is not None:
            return self._on_host()
        # What reads it there is ordered behind the copy; for one to the host that is not so.
        return scale if gradient.device.type == "cpu" else scale.to(gradient.device, non_blocking=True)

    @property
    def _scale(self) -> torch.Tensor | None:
        scale = getattr(self._scaler, "_scale", None)
        return scale if isinstance(scale, torch.Tensor) else None

    def at_step(self) -> torch.Tensor | None:
        """By what the gradients are still multiplied that the optimizer's step is given: fused optimizers undo the
        scaling themselves."""
        return self._of_optimizer("grad_scale")

    def _of_optimizer(self, name: str) -> torch.Tensor | None:
        found = (getattr(one, name, None) for one in members(self._optimizer))
        return next((one for one in found if isinstance(one, torch.Tensor)), None)

    def between(self) -> torch.Tensor | None:
        """By what `param.grad` is multiplied outside of a step: the scale, unless `unscale_` was called."""
        states = getattr(self._scaler, "_per_optimizer_states", {})
        stages = (states.get(id(one), {}).get("stage") for one in members(self._optimizer))
        unscaled = any(getattr(stage, "name", "READY") == "UNSCALED" for stage in stages)
        return None if unscaled else self._scale

    def found_inf(self) -> torch.Tensor | None:
        """While a fused optimizer steps: a number that is greater than 0 if it skips the update; else None."""
        return self._of_optimizer("found_inf")

    def step_ends(self) -> None:
        """The next loss may be one that nobody scales."""
        self._scaler = self._on_host = None

    def scaled_by(self, scaler: Any) -> None:
        """A scaler has multiplied a loss."""
        if self._optimizer is None or not scaler.is_enabled():
            return
        self._scaler = scaler
        scale = self._scale
        if scale is not None and scale.device.type != "cpu":
            if self._has_host_parameters is None:
                # Not before: the script may move its model until it is trained.
                groups = getattr(self._optimizer, "param_groups", ())
                self._has_host_parameters = any(one.device.type == "cpu" for group in groups for one in group["params"])
            if self._has_host_parameters:
                self._on_host = _copy_to_host(scale)

    def steps_of(self, optimizer: Any) -> int | None:
        """How many calls of an optimizer's step were seen so far; None if it is not a monitored one."""
        calls = None if self._optimizer is None else self.steps.given(unwrapped_optimizer(optimizer))
        return None if calls is None else calls.count

    def _close(self) -> None:
        self._scaler = self._optimizer = self._on_host = None


def _copy_to_host(number: torch.Tensor) -> Callable[[], float]:
    """Begin the copy; what is returned waits until it is there."""
    backend = getattr(torch, number.device.type)
    if not hasattr(backend, "Event"):
        # Nothing says when a copy in the background is over; and the scaler will write another number there.
        number = number.clone()
        return lambda: float(number)
    with backend.device(number.device):
        copy = number.to("cpu", non_blocking=True)
        done = backend.Event()
        done.record()

    def wait() -> float:
        # A thread of autograd waits, which may work for another device.
        with backend.device(number.device):
            done.synchronize()
        return float(copy)

    return wait


def _scaling(owner: weakref.ref[LossScale], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = original(scaler, *args, **kwargs)
        if (losses := owner()) is not None:
            losses.guard.run(losses.scaled_by, scaler)
        return scaled

    return scale


def _stepping(owner: weakref.ref[LossScale], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        losses = owner()
        before = None if losses is None else losses.guard.run(losses.steps_of, optimizer)
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            if losses is not None and before is not None and losses.guard.run(losses.steps_of, optimizer) == before:
                losses.steps.skipped(unwrapped_optimizer(optimizer))
            return result
        finally:
            if losses is not None:
                # Whoever's step it was: the backward of the loss that was scaled is over.
                losses.step_ends()

    return step


def _scaler_classes() -> Iterator[type]:
    """GradScaler and its subclasses, as far as they are loaded."""
    base = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    waiting = [base]
    while waiting:
        scaler = waiting.pop()
        yield scaler
        waiting += scaler.__subclasses__()
