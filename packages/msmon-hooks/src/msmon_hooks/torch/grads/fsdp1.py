"""FullyShardedDataParallel with `use_orig_params=True`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import nn

from msmon_hooks.events import Shard
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.layout import Layout
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.source import GradientSource, OnReady
from msmon_hooks.torch.process_groups import group_ranks
from msmon_hooks.torch.wrappers import is_a

_NEEDED = ("_params", "_shapes", "_numels_with_padding", "_is_padding_mask", "_shard_param_infos")

_UNKNOWN = f"the flat parameters of FullyShardedDataParallel in torch {torch.__version__} are not known"


@frozen(kw_only=True)
class _Segment:
    """Where an original parameter lies in the unsharded flat parameter, and what of it this rank holds."""

    parameter: nn.Parameter
    start: int
    shape: tuple[int, ...]
    sharded: bool
    """False with `NO_SHARD`."""
    held: tuple[int, int]
    """`(start, stop)` of the elements that this rank holds, counted within the original parameter."""

    def whole(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's elements of an unsharded flat tensor."""
        return flat.narrow(0, self.start, torch.Size(self.shape).numel()).view(self.shape)


class FSDP1Gradients(GradientSource):
    """The parameters of a wrapped module are one flat parameter; a rank holds one stretch of it.

    Before the reduce-scatter the whole flat gradient lies on the rank: autograd has just accumulated it, and FSDP's
    own hook runs behind ours.
    """

    engine = "fsdp1"
    each_micro_step = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._units: list[tuple[nn.Module, Any]] = list(_units(self.models))
        for _, unit in self._units:
            if getattr(unit.flat_param, "_params", None) is None:
                raise ValueError(
                    "set_monitor: the model is wrapped in FullyShardedDataParallel with use_orig_params=False, which "
                    "hides the parameters in flat ones; wrap it with use_orig_params=True"
                )
        self._segments: dict[int, _Segment] = {}
        if all(hasattr(unit.flat_param, name) for _, unit in self._units for name in _NEEDED):
            self._segments = {id(s.parameter): s for _, unit in self._units for s in _segments(unit)}

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether a module is wrapped in FullyShardedDataParallel."""
        return any(_is_fsdp(module) for model in models for module in model.modules())

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` when the flat gradient is complete and will be reduced."""
        left = {id(weight.parameter): weight for weight in weights}
        for module, unit in self._units:
            flat = unit.flat_param
            mine = [left.pop(id(parameter)) for parameter in flat._params if id(parameter) in left]
            inside = [(weight, self._segments[id(weight.parameter)]) for weight in mine if self._segments]
            if len(inside) < len(mine):
                self.miss_unreduced(mine, _UNKNOWN)
            elif inside:
                hook = _FlatAccumulated(self.guard, module, inside, on_ready)
                if flat.requires_grad:
                    registrations.add(flat.register_post_accumulate_grad_hook(hook))
                elif any(weight.parameter.requires_grad for weight in mine):
                    _Unfrozen(self.guard, flat, hook, registrations).wait_in(module)
        # Of ignored modules: FSDP does not reduce them.
        self.hook_accumulation(list(left.values()), on_ready, registrations)

    def layout(self, weight: Weight) -> Layout | None:
        """The ranks of the wrapper's groups hold parts of the mean over them."""
        for module, unit in self._units:
            if any(weight.parameter is one for one in unit.flat_param._params):
                return _layout(module, unit)
        return super().layout(weight)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The stretch of the original parameter that this rank holds; None where it is not sharded."""
        if not self._segments and data_type != "grad_unreduced":
            # Nobody knows the whole: merging must not take this for it.
            return Shard((-1,), tuple(weight.parameter.shape), f"rank {torch.distributed.get_rank()}")
        segment = self._segments.get(id(weight.parameter))
        if segment is None or not segment.sharded or data_type == "grad_unreduced":
            return None
        start, stop = segment.held
        return Shard(segment.shape, (stop - start,), f"{start}:{stop}")


def _layout(module: Any, unit: Any) -> Layout:
    groups = {"data": group_ranks(unit.process_group)}
    between = getattr(module, "_inter_node_pg", None) if "HYBRID" in str(unit._sharding_strategy) else None
    if between is not None:
        groups["replicas"] = group_ranks(between)
    if getattr(module, "_comm_hook", None) is not None:
        return Layout(equal_over=groups)
    precision = getattr(module, "mixed_precision", None)
    dtype = getattr(precision, "reduce_dtype", None) or getattr(precision, "param_dtype", None)
    size = len(groups["data"]) * len(groups.get("replicas", (0,)))
    return Layout(equal_over=groups, summed_over=groups, divided_by=size, dtype=str(dtype or ""))


class _FlatAccumulated(Hook):
    def __init__(self, guard: Guarded, module: Any, inside: list[tuple[Weight, _Segment]], on_ready: OnReady) -> None:
        super().__init__(guard)
        self.module = module
        self.inside = inside
        self.on_ready = on_ready

    def fire(self, flat: torch.Tensor) -> None:
        # Under no_sync the flat gradient goes on accumulating.
        if self.on_ready.wanted and flat.grad is not None and self.module._sync_gradients:
            self.on_ready([(weight, one.whole(flat.grad)) for weight, one in self.inside], complete=True)


class _Unfrozen(Hook):
    """Sits in front of the module inside: when its parameters were unfrozen, FSDP sees that just before it runs."""

    def __init__(self, guard: Guarded, flat: Any, hook: _FlatAccumulated, registrations: Registrations) -> None:
        super().__init__(guard)
        self.flat = flat
        self.hook = hook
        self.registrations = registrations
        self.removable: Any = None

    def wait_in(self, module: nn.Module) -> None:
        """Wait for the next forward of a wrapped module."""
        self.removable = module._fsdp_wrapped_module.register_forward_pre_hook(self)  # type: ignore[operator, union-attr]
        self.registrations.add(self.removable)

    def fire(self, module: nn.Module, args: Any) -> None:
        self.removable.remove()
        if self.flat.requires_grad:
            self.registrations.add(self.flat.register_post_accumulate_grad_hook(self.hook))


def _is_fsdp(module: nn.Module) -> bool:
    return is_a(module, "FullyShardedDataParallel")


def _units(models: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, Any]]:
    """Wrapped modules, each with torch's `FlatParamHandle`."""
    for module in (module for model in models for module in model.modules() if _is_fsdp(module)):
        unit = getattr(module, "_handle", None)
        if unit is not None:
            yield module, unit


def _segments(unit: Any) -> Iterator[_Segment]:
    """The original parameters of a flat one, in its order."""
    flat = unit.flat_param
    sharded = bool(unit.uses_sharded_strategy)
    parameters = zip(flat._params, flat._shapes, flat._shard_param_infos, strict=True)
    start = 0
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            parameter, shape, info = next(parameters)
            held = (info.intra_param_start_idx, info.intra_param_end_idx + 1) if info.in_shard else (0, 0)
            yield _Segment(parameter=parameter, start=start, shape=tuple(shape), sharded=sharded, held=held)
        start += numel
