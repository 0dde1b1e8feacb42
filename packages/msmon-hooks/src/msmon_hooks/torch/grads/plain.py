"""One process: the gradient is ``param.grad`` (or ``param.main_grad``), before and after a reduction that is none."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.source import GradientSource, OnReady
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.parameters import Weight


class _Accumulated(Hook):
    """Runs when autograd has added to ``param.grad``: the value is the sum over the micro-steps so far."""

    def __init__(self, weight: Weight, on_ready: OnReady) -> None:
        self.weight = weight
        self.on_ready = on_ready

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.on_ready(self.weight, parameter.grad)


class PlainGradients(GradientSource):
    """Gradients of a training without an engine."""

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call ``on_ready`` after each accumulation."""
        for weight in weights:
            if weight.parameter.requires_grad:
                hook = _Accumulated(weight, on_ready)
                registrations.add(weight.parameter.register_post_accumulate_grad_hook(hook))
