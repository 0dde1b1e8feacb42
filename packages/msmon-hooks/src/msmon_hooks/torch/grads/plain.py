"""One process, or ranks that the script itself joins: the gradient is `param.grad` (or `param.main_grad`)."""

from __future__ import annotations

from typing import Any

from torch import distributed

from msmon_hooks.torch.grads.source import UNSEEN, GradientSource


class PlainGradients(GradientSource):
    """Gradients of a training without an engine."""

    keeps_gradients = True
    unseen = UNSEEN

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A script may call all_reduce(param.grad) itself.
        self.reduces = distributed.is_available() and distributed.is_initialized()
        self.reads_grad_at_step = not self.reduces
