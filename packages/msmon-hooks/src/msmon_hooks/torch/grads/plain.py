"""One process: the gradient is ``param.grad`` (or ``param.main_grad``), before and after a reduction that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.parameters import Weight


class _Accumulated(Hook):
    """Runs when autograd has added to ``param.grad``: the value is the sum over the micro-steps so far."""

    def __init__(self, weight: Weight, on_ready: Callable[[Weight, torch.Tensor], None]) -> None:
        self.weight = weight
        self.on_ready = on_ready

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.on_ready(self.weight, parameter.grad)


class PlainGradients:
    """Gradients of a training without an engine."""

    engine = "plain"
    reads_grad_at_step = True
    """Whether, at the optimizer's step, the gradient of this rank can still be read from the parameter."""

    def __init__(self, *, main_grad: bool = True) -> None:
        self._main_grad = main_grad

    def attach(
        self,
        weights: Sequence[Weight],
        on_ready: Callable[[Weight, torch.Tensor], None],
        registrations: Registrations,
    ) -> None:
        """Call ``on_ready(weight, gradient)`` whenever a backward has completed the gradient of a parameter.

        Frozen parameters are hooked as soon as they can be: :meth:`attach` is called again for one that was
        unfrozen.
        """
        for weight in weights:
            if weight.parameter.requires_grad:
                hook = _Accumulated(weight, on_ready)
                registrations.add(weight.parameter.register_post_accumulate_grad_hook(hook))

    def reduced(self, weight: Weight) -> Any | None:
        """The gradient that the optimizer consumes, or None where there is none."""
        main_grad = getattr(weight.parameter, "main_grad", None) if self._main_grad else None
        return main_grad if main_grad is not None else weight.parameter.grad
