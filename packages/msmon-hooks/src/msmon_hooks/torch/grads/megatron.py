"""Megatron-core: gradients when a bucket's reduction begins, and this rank's range of everything after it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from attrs import frozen
from torch import nn

from msmon_hooks.events import Shard
from msmon_hooks.guard import logger
from msmon_hooks.hooks import Hook
from msmon_hooks.layout import Layout
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameter_state import ParameterState
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.megatron_layout import layout_of
from msmon_hooks.torch.grads.megatron_optimizers import Held, chained, held_by, is_split
from msmon_hooks.torch.grads.megatron_parallel import Split, data_parallel_size, is_expert, splits_of
from msmon_hooks.torch.grads.source import GradientSource, OnReady
from msmon_hooks.torch.wrappers import is_a

UNKNOWN_PLACE = "the optimizer keeps it at a place that is not known"


class MegatronGradients(GradientSource):
    """Gradients of Megatron-core's DistributedDataParallel, and what its optimizers have.

    From core_r0.6, whose buckets begin their reductions themselves, to the newest, where groups of buckets do.
    """

    engine = "megatron"
    updates_itself = True

    def __init__(self, models: Sequence[nn.Module], optimizer: Any, **settings: Any) -> None:
        super().__init__(models, optimizer, **settings)
        self._held: dict[int, Held] = {}
        self._updating: Any = None
        self._split_optimizer = is_split(optimizer)
        self._known = bool(self.update_guard.run(self._find_held))
        if not self._known:
            self._report(
                f"where {type(optimizer).__name__} keeps weights, moments and reduced gradients is not known; "
                "grad_reduced, exp_avg, exp_avg_sq, param_origin and param_updated are missing"
            )

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether there is a Megatron optimizer, or a model that reduces gradients as Megatron's does."""
        return is_a(optimizer, "MegatronOptimizer") or any(
            _is_data_parallel(module) for model in models for module in model.modules()
        )

    def _find_held(self) -> bool:
        self._held = {id(held.parameter): held for held in held_by(self.optimizer)}
        # A pipeline stage may have nothing to train; an optimizer of an unknown kind seems to have nothing either.
        known = is_a(self.optimizer, "MegatronOptimizer") or hasattr(self.optimizer, "param_groups")
        return known and not is_a(self.models[0], "FullyShardedDataParallel")

    def _report(self, text: str) -> None:
        text = f"megatron-core {_version()}: {text}"
        logger.warning("%s", text)
        self.coverage.note(text)

    def trains(self, weight: Weight) -> bool:
        """Whether some rank's optimizer updates the parameter."""
        return weight.parameter.requires_grad

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Wrap the beginning of each reduction; for the micro-steps before it, hook the accumulation."""
        left = {id(weight.parameter): weight for weight in weights if weight.parameter.requires_grad}
        for bucket in self._buckets():
            inside = [left.pop(id(one)) for one in bucket.parameters if id(one) in left]
            if not inside:
                continue
            registrations.patch(bucket.owner, "start_grad_sync", self._before(bucket, inside, on_ready))
            if on_ready.each_micro_step:
                for weight in inside:
                    node = weight.parameter.expand_as(weight.parameter).grad_fn.next_functions[0][0]
                    # Megatron's own hook, which adds to main_grad, was set before, and runs before.
                    registrations.add(node.register_hook(_Accumulated(self, bucket, weight, on_ready)))
        if left:
            names = ", ".join(weight.name for weight in list(left.values())[:3])
            self._report(f"grad_unreduced is missing of {len(left)} parameters that are in no known bucket ({names})")

    def _buckets(self) -> Iterator[_Bucket]:
        chunks = getattr(self.optimizer, "model_chunks", ())
        seen: set[int] = set()
        for module in chain(*(model.modules() for model in (*self.models, *chunks))):
            if _is_data_parallel(module) and id(module) not in seen:
                seen.add(id(module))
                yield from self.guard.run(_buckets_of, module) or ()

    def _before(
        self, bucket: _Bucket, inside: list[Weight], on_ready: OnReady
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def start_grad_sync(*args: Any, **kwargs: Any) -> Any:
                if on_ready.wanted:
                    self.guard.run(self.read_bucket, bucket, inside, on_ready)
                return original(*args, **kwargs)

            return start_grad_sync

        return make

    def read_bucket(self, bucket: _Bucket, inside: Sequence[Weight], on_ready: OnReady) -> None:
        """A reduction is to begin, unless it has."""
        if not bucket.in_flight:
            self.read(inside, on_ready, complete=True)

    def read(self, weights: Sequence[Weight], on_ready: OnReady, complete: bool) -> None:
        """Read `main_grad`, which holds the sum of this rank's gradients so far."""
        main_grads = ((weight, getattr(weight.parameter, "main_grad", None)) for weight in weights)
        entries = [(weight, main_grad) for weight, main_grad in main_grads if main_grad is not None]
        on_ready(entries, scale=self.scale(), complete=complete)

    def attach_update(
        self, on_update: Callable[[], None], steps: OptimizerSteps[Any], registrations: Registrations
    ) -> None:
        """Hook the inner optimizers: Megatron unscales and clips gradients inside of its own step."""
        inner = [one for one in chained(self.optimizer) if hasattr(_inner(one), "register_step_pre_hook")]
        for one in inner:
            registrations.add(_inner(one).register_step_pre_hook(_Updates(self, one, on_update)))
        if not inner:
            super().attach_update(on_update, steps, registrations)

    def read_update(self, optimizer: Any, on_update: Callable[[], None]) -> None:
        """An inner optimizer is about to consume its gradients."""
        self._updating = optimizer
        try:
            on_update()
        finally:
            self._updating = None

    def scale(self) -> float | torch.Tensor | None:
        """The loss scale; what an update consumes has been unscaled."""
        if self._updating is not None:
            return None
        scalers = (getattr(one, "grad_scaler", None) for one in chained(self.optimizer))
        scaler = next((one for one in scalers if one is not None), None)
        return None if scaler is None else scaler.scale.detach().reshape(())

    def skipped(self, result: Any) -> bool:
        """Whether the step found an overflow: it then returns False as the first of its values."""
        return isinstance(result, tuple) and len(result) > 0 and result[0] is False

    def reduced(self, weight: Weight) -> torch.Tensor | None:
        """The rank's range of the reduced gradient."""
        held = self._held.get(id(weight.parameter))
        if held is None or self._updating not in (None, held.optimizer):
            return None
        return held.reduced() if self._updating is None else held.consumed()

    def value(self, weight: Weight) -> torch.Tensor | None:
        """The rank's range of the weight, in the optimizer's precision."""
        held = self._held.get(id(weight.parameter))
        return None if held is None else held.weight()

    def moments(self, weight: Weight) -> ParameterState:
        """The rank's range of the moments."""
        held = self._held.get(id(weight.parameter))
        return ParameterState() if held is None else held.moments()

    def layout(self, weight: Weight) -> Layout | None:
        """What the bucket of its gradient, and Megatron's groups, say. Several instances of a distributed optimizer
        reduce in two stages, over groups that are not looked at here."""
        for bucket in self._buckets():
            if any(weight.parameter is one for one in bucket.parameters):
                return layout_of(weight.name, weight.parameter, bucket.owner, getattr(self.models[0], "config", None))
        return super().layout(weight)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The part that tensor parallelism, expert parallelism and a distributed optimizer leave on this rank."""
        parameter = weight.parameter
        splits = splits_of(parameter)
        shape = tuple(parameter.shape)
        for split in splits:
            shape = split.whole(shape)
        if data_type == "grad_unreduced":
            return (
                Shard(shape, tuple(parameter.shape), _part(splits))
                if splits and data_parallel_size(parameter) == 1
                else None
            )
        held = self._held.get(id(parameter))
        if not self._split_optimizer or not parameter.requires_grad:
            return Shard(shape, tuple(parameter.shape), _part(splits)) if splits else None
        start, stop = (0, 0) if held is None else (held.start, held.stop)
        local = tuple(held.main.shape) if held is not None else (0,)
        return Shard(shape, local, ",".join(filter(None, (_part(splits), f"{start}:{stop}"))))

    def writes(self, weight: Weight, data_type: str) -> bool:
        """As without an engine; but ranges of a distributed optimizer, and experts, differ from rank to rank."""
        if data_type == "grad_unreduced":
            return True
        if not self._known:
            self.coverage.explain(data_type, weight.name, UNKNOWN_PLACE, stage=weight.vpp_stage)
            return False
        if is_expert(weight.parameter):
            return True
        split = getattr(weight.parameter, "tensor_model_parallel", False)
        if not split and not self.process_groups.writes_for(self.process_groups.tensor_parallel):
            return False
        if data_type != "grad_reduced" or self._split_optimizer:
            return True
        return self.process_groups.writes_for(self.process_groups.data_parallel)


@frozen(kw_only=True, eq=False)
class _Bucket:
    """What is reduced in one piece."""

    owner: Any
    """The object that has `start_grad_sync`."""
    parameters: list[nn.Parameter]
    buffer: Any
    """The object that knows whether this is the last micro-step."""

    @property
    def in_flight(self) -> bool:
        """Whether the reduction has begun: a second beginning may do nothing."""
        return any(
            getattr(self.owner, name, None) not in (None, False)
            for name in ("grad_reduce_handle", "communication_handle", "communication_issued")
        )

    @property
    def begins_in_backward(self) -> bool:
        """Whether the reduction begins while the backward of the micro-step in flight runs."""
        overlaps = getattr(self.owner, "overlap_grad_reduce", None)
        if overlaps is None:
            overlaps = getattr(getattr(self.owner, "ddp_config", None), "overlap_grad_reduce", False)
        return bool(overlaps) and bool(getattr(self.buffer, "is_last_microbatch", True))


class _Accumulated(Hook):
    """Held by autograd, and so leads to no parameter; see `msmon_hooks.torch.grads.accumulated`."""

    def __init__(self, source: MegatronGradients, bucket: _Bucket, weight: Weight, on_ready: OnReady) -> None:
        super().__init__(source.guard)
        self.source = weakref.ref(source)
        self.bucket = weakref.ref(bucket)
        self.weight = weakref.ref(weight)
        self.on_ready = on_ready

    def fire(self, *unused: Any) -> None:
        source, bucket, weight = self.source(), self.bucket(), self.weight()
        if source is None or bucket is None or weight is None or not self.on_ready.wanted:
            return
        if not bucket.begins_in_backward:
            source.read([weight], self.on_ready, complete=False)


class _Updates(Hook):
    def __init__(self, source: MegatronGradients, optimizer: Any, on_update: Callable[[], None]) -> None:
        super().__init__(source.update_guard)
        self.source = source
        self.optimizer = optimizer
        self.on_update = on_update

    def fire(self, inner: Any, args: Any, kwargs: Any) -> None:
        self.source.read_update(self.optimizer, self.on_update)


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", None)


def _is_data_parallel(module: nn.Module) -> bool:
    return all(callable(getattr(type(module), name, None)) for name in ("start_grad_sync", "finish_grad_sync"))


def _buckets_of(module: Any) -> list[_Bucket]:
    """Groups of buckets, or, up to core_r0.8, buckets."""
    if hasattr(module, "bucket_groups"):
        groups = [*module.bucket_groups, *getattr(module, "expert_parallel_bucket_groups", ())]
        return [
            _Bucket(
                owner=group, buffer=group, parameters=[one for bucket in group.buckets for one in bucket.params_list]
            )
            for group in groups
        ]
    if not isinstance(getattr(module, "buffers", None), list):
        return []
    buffers = [*module.buffers, *getattr(module, "expert_parallel_buffers", ())]
    return [
        _Bucket(owner=bucket, buffer=buffer, parameters=list(bucket.params_list))
        for buffer in buffers
        for bucket in buffer.buckets
    ]


def _part(splits: Sequence[Split]) -> str:
    return ",".join(split.part for split in splits)


def _version() -> str:
    core, info = (sys.modules.get(f"megatron.core{name}") for name in ("", ".package_info"))
    version = getattr(core, "__version__", None) or getattr(info, "__version__", None)
    return "of an unknown version" if version is None else str(version)
