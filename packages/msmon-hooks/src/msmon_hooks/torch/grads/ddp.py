"""DistributedDataParallel: gradients are read before their bucket is reduced, and again at the optimizer's step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.source import UNSEEN, GradientSource, OnReady
from msmon_hooks.torch.wrappers import is_a


class DDPGradients(GradientSource):
    """`param.grad` is the rank's own when autograd has accumulated it; the reducer's hooks run after that.

    Buckets, `static_graph`, `gradient_as_bucket_view`, communication hooks and `no_sync` change nothing of it.
    """

    engine = "ddp"
    keeps_gradients = True
    unseen = UNSEEN

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether a model is, or has in it, a DistributedDataParallel."""
        return any(_is_ddp(module) for model in models for module in model.modules())

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` after each accumulation."""
        left = {id(weight.parameter): weight for weight in weights}
        for wrapper in (module for model in self.models for module in model.modules() if _is_ddp(module)):
            inside = [left.pop(id(parameter)) for parameter in wrapper.parameters() if id(parameter) in left]
            complete = functools.partial(_reduces_now, weakref.ref(wrapper))
            self.hook_accumulation(inside, on_ready, registrations, complete=complete)
        self.hook_accumulation(list(left.values()), on_ready, registrations)


def _is_ddp(module: nn.Module) -> bool:
    return is_a(module, "DistributedDataParallel")


def _reduces_now(ddp: weakref.ref[nn.Module]) -> bool:
    """False under `no_sync`: then a later micro-step is reduced."""
    return bool(getattr(ddp(), "require_backward_grad_sync", False))
