"""The moment at which autograd has added to `param.grad`: before any engine reduces it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from msmon_hooks.gradients import OnReady
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.parameters import Weight
from msmon_hooks.torch.passes import is_apart
from msmon_hooks.torch.weight_passes import WeightPass


class Accumulated(Hook):
    """The value is the sum over the micro-steps so far.

    Hooks of this kind run inside autograd's accumulation; those by which DDP and FSDP1 begin their reductions run
    behind it.

    Autograd holds the hooks of a parameter where Python's garbage collector cannot look. A hook that led back to the
    parameter would keep the model alive for ever, so the weight is held weakly, and so must be what `on_ready` and
    `complete` lead to: whoever asked for the hook lives as long as the optimizer's hooks do.
    """

    def __init__(self, guard: Guarded, weight: Weight, on_ready: OnReady, complete: Callable[[], bool]) -> None:
        super().__init__(guard)
        self.weight = weakref.ref(weight)
        self.on_ready = on_ready
        self.complete = complete

    def __call__(self, parameter: torch.Tensor) -> None:
        # As every hook, but asked first: most steps are not recorded.
        if self.on_ready.wanted and self.guard.enabled:
            try:
                self.fire(parameter)
            except Exception as error:
                self.guard.fail(error)

    def fire(self, parameter: torch.Tensor) -> None:
        if parameter.grad is None or is_apart((), {}):
            return
        if WeightPass.running:
            WeightPass.accumulated.add(id(parameter))
        if (weight := self.weight()) is not None:
            self.on_ready([(weight, parameter.grad)], complete=self.complete())
