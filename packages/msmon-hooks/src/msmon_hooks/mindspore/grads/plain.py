"""One process: nobody reduces, so what the optimizer is given is the rank's own gradient."""

from __future__ import annotations

from msmon_hooks.mindspore.grads.source import GradientSource


class PlainGradients(GradientSource):
    """Gradients of a training with one process."""

    reduces = False
    reads_grad_at_step = True
