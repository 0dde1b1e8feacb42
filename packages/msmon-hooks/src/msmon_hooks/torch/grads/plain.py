"""One process, or ranks that the script itself joins: the gradient is `param.grad` (or `param.main_grad`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import distributed

from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.accumulated import hook_accumulation
from msmon_hooks.torch.grads.source import GradientSource, OnReady


class PlainGradients(GradientSource):
    """Gradients of a training without an engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A script may call all_reduce(param.grad) itself, which autograd's version counter does not see.
        self.reduces = distributed.is_available() and distributed.is_initialized()
        self.reads_grad_at_step = not self.reduces

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` after each accumulation."""
        hook_accumulation(weights, on_ready, registrations)
