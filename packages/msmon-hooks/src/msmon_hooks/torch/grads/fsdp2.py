"""FSDP2 (`fully_shard`): parameters are DTensors, each rank holds its part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import nn

from msmon_hooks.events import Shard
from msmon_hooks.layout import Layout
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.source import GradientSource, OnReady
from msmon_hooks.torch.mesh_shards import local_part, mesh_shard
from msmon_hooks.torch.wrappers import is_a

_NEEDED = ("sharded_param", "unsharded_accumulated_grad", "accumulate_unsharded_grad_if_needed")

_UNKNOWN = f"torch {torch.__version__} reduces the gradients of fully_shard at a place that is not known"


class FSDP2Gradients(GradientSource):
    """Before the reduce-scatter the whole gradient of this rank's batch lies in the unsharded parameter.

    torch has no hook there, so `post_backward` of the parameter groups is wrapped: it is where torch collects the
    gradients of a module, and everything it needs has been computed on the stream that it runs on.
    """

    engine = "fsdp2"
    each_micro_step = False

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether `fully_shard` was called on a module."""
        return any(_is_sharded(module) for model in models for module in model.modules())

    def weights(self) -> list[Weight]:
        """The sharded parameters, also while a module has its unsharded ones in place."""
        sharded: dict[int, nn.Parameter] = {}
        for group in _param_groups(self.models):
            for one in group.fsdp_params:
                for name in ("_unsharded_param", "_sharded_post_forward_param"):
                    sharded[id(getattr(one, name, None))] = one.sharded_param
        return [evolve(w, parameter=sharded.get(id(w.parameter), w.parameter)) for w in super().weights()]

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` when a module's gradients are about to be reduced."""
        left = {id(weight.parameter): weight for weight in weights}
        for group in _param_groups(self.models):
            inside = [
                (left.pop(id(one.sharded_param)), one) for one in group.fsdp_params if id(one.sharded_param) in left
            ]
            if inside and not _is_known(group):
                self.miss_unreduced([weight for weight, _ in inside], _UNKNOWN)
            elif inside:
                registrations.patch(group, "post_backward", self._before(group, inside, on_ready))
        # Parameters that fully_shard was told to ignore.
        self.hook_accumulation(list(left.values()), on_ready, registrations)

    def _before(
        self, group: Any, inside: list[tuple[Weight, Any]], on_ready: OnReady
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def post_backward(*unused: Any) -> Any:
                if on_ready.wanted:
                    self.guard.run(_read, group, inside, on_ready)
                return original(*unused)

            return post_backward

        return make

    def layout(self, weight: Weight) -> Layout | None:
        """The ranks of the mesh that `fully_shard` was given hold parts of the mean over them."""
        for group in _param_groups(self.models):
            for one in group.fsdp_params:
                if one.sharded_param is weight.parameter:
                    return _layout(group, one)
        return super().layout(weight)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The rank's part of the parameter; the gradient before the reduction is whole."""
        return None if data_type == "grad_unreduced" else mesh_shard(weight.parameter)


def _layout(group: Any, one: Any) -> Layout:
    ranks = {"data": group.mesh_info.mesh.mesh.flatten().tolist()}
    if getattr(one, "is_dtensor", False):
        # Split by tensor parallelism before: its gradient is a part, and of which ranks the rest is, is not known here.
        return Layout(equal_over=ranks)
    factor = getattr(group, "gradient_divide_factor", None)
    policy = getattr(group, "mp_policy", None) or getattr(one, "mp_policy", None)
    dtype = getattr(policy, "reduce_dtype", None) or getattr(policy, "param_dtype", None)
    return Layout(
        equal_over=ranks,
        summed_over=ranks,
        divided_by=len(ranks["data"]) if factor is None else float(factor),
        dtype=str(dtype or ""),
    )


def _read(group: Any, inside: list[tuple[Weight, Any]], on_ready: OnReady) -> None:
    if group.reduce_grads:
        gradients = ((weight, _unreduced(one)) for weight, one in inside)
        on_ready([(weight, local_part(one)) for weight, one in gradients if one is not None], complete=True)


def _unreduced(one: Any) -> torch.Tensor | None:
    """The gradient that is reduced next: of earlier micro-steps, of this one, or of both."""
    unsharded = getattr(one, "_unsharded_param", None)
    if unsharded is None:
        return None
    if one.unsharded_accumulated_grad is not None and unsharded.grad is not None:
        # What post_backward itself does first.
        one.accumulate_unsharded_grad_if_needed()
    gradient: torch.Tensor | None = one.unsharded_accumulated_grad
    return unsharded.grad if gradient is None else gradient


def _is_known(group: Any) -> bool:
    return callable(getattr(group, "post_backward", None)) and all(
        hasattr(one, name) for one in group.fsdp_params for name in _NEEDED
    )


def _is_sharded(module: nn.Module) -> bool:
    return is_a(module, "FSDPModule")


def _param_groups(models: Sequence[nn.Module]) -> Iterator[Any]:
    """The parameter groups of all modules; a group that several modules share comes once."""
    seen: set[int] = set()
    for module in (module for model in models for module in model.modules() if _is_sharded(module)):
        state = module._get_fsdp_state()  # type: ignore[operator]
        # One group a module at first, several since torch 2.12.
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            if group is not None and id(group) not in seen:
                seen.add(id(group))
                yield group
