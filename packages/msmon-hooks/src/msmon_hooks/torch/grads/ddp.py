"""DistributedDataParallel: gradients are read before their bucket is reduced, and again at the optimizer's step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve
from torch import nn

from msmon_hooks.layout import Layout
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.source import UNSEEN, GradientSource, OnReady
from msmon_hooks.torch.process_groups import group_ranks
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
        for wrapper in self._wrappers():
            inside = [left.pop(id(parameter)) for parameter in wrapper.parameters() if id(parameter) in left]
            complete = functools.partial(_reduces_now, weakref.ref(wrapper))
            self.hook_accumulation(inside, on_ready, registrations, complete=complete)
        self.hook_accumulation(list(left.values()), on_ready, registrations)

    def _wrappers(self) -> Iterator[Any]:
        return (module for model in self.models for module in model.modules() if _is_ddp(module))

    def layout(self, weight: Weight) -> Layout | None:
        """The wrapper's group takes the mean, unless a communication hook does something else."""
        for wrapper in self._wrappers():
            ignored = getattr(wrapper, "parameters_to_ignore", ())
            names = {id(one): name for name, one in wrapper.module.named_parameters()}
            name = names.get(id(weight.parameter))
            if name is not None and name not in ignored and not _drifts(wrapper):
                ranks = {"data": group_ranks(wrapper.process_group)}
                shared = Layout(equal_over=ranks)
                dtype = _mean_dtype(wrapper)
                if dtype is None:
                    return shared
                return evolve(shared, summed_over=ranks, divided_by=len(ranks["data"]), dtype=dtype)
        return super().layout(weight)


_MEANS = {
    "allreduce_hook": "",
    "fp16_compress_hook": "torch.float16",
    "bf16_compress_hook": "torch.bfloat16",
}
"""Communication hooks that take the mean over the ranks, and the dtype in which they do."""


def _mean_dtype(wrapper: Any) -> str | None:
    """In which dtype the wrapper takes the mean, "" for that of the gradients; None where it may do something else."""
    hooks = _hook_names(wrapper)
    if any(hook not in _MEANS for hook in hooks):
        return None
    reduced_in = getattr(getattr(wrapper, "mixed_precision", None), "reduce_dtype", None)
    return next((_MEANS[hook] for hook in hooks), str(reduced_in or ""))


def _hook_names(wrapper: Any) -> list[str]:
    return [getattr(hook, "__name__", "") for hook, _ in getattr(wrapper, "_comm_hooks", ())]


def _drifts(wrapper: Any) -> bool:
    """Whether ranks are meant to go different ways for a while."""
    return any("localSGD" in name for name in _hook_names(wrapper))


def _is_ddp(module: nn.Module) -> bool:
    return is_a(module, "DistributedDataParallel")


def _reduces_now(ddp: weakref.ref[nn.Module]) -> bool:
    """False under `no_sync`: then a later micro-step is reduced."""
    return bool(getattr(ddp(), "require_backward_grad_sync", False))
