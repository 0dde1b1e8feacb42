"""DeepSpeed, ZeRO 0 to 3: gradients before DeepSpeed's hooks reduce them, and this rank's part of everything after."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from msmon_hooks.events import Shard
from msmon_hooks.guard import logger
from msmon_hooks.hooks import Hook
from msmon_hooks.layout import Layout
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameter_state import ParameterState
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.deepspeed_parts import find_parts
from msmon_hooks.torch.grads.first_hook import register_first
from msmon_hooks.torch.grads.local_sums import LocalSums
from msmon_hooks.torch.grads.source import GradientSource, OnReady
from msmon_hooks.torch.process_groups import group_ranks
from msmon_hooks.torch.wrappers import is_a

UNKNOWN_PLACE = "the optimizer keeps it at a place that is not known"


class DeepSpeedGradients(GradientSource):
    """Gradients of a training by a DeepSpeed engine, or by one that accelerate or the Hugging Face Trainer made.

    The optimizer that the script passes may be the engine, DeepSpeed's optimizer, or the one inside it.
    """

    updates_itself = True

    def __init__(self, models: Sequence[nn.Module], optimizer: Any, **settings: Any) -> None:
        self._engine = next((one for one in (*models, optimizer) if is_a(one, "DeepSpeedEngine")), None)
        super().__init__(models, _deepspeed_optimizer(self._engine, models, optimizer), **settings)
        self.engine = f"deepspeed_zero{_stage(self.optimizer)}"
        self._parts = find_parts(self.optimizer)
        self._scales = _scales_loss(self.optimizer)
        self._sums: LocalSums | None = None
        self._updating = False
        if self._parts is None:
            self._report_unknown()

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether there is a DeepSpeed engine or optimizer, or DeepSpeed's marks on the parameters."""
        return (
            any(is_a(one, "DeepSpeedEngine") for one in (*models, optimizer))
            or _from_deepspeed(optimizer)
            or any(_owner(parameter) is not None for model in models for parameter in model.parameters())
        )

    def _report_unknown(self) -> None:
        text = (
            f"DeepSpeed {_version()}: where {type(self.optimizer).__name__} keeps weights, moments and reduced "
            "gradients is not known; grad_reduced, exp_avg, exp_avg_sq, param_origin and param_updated are missing"
        )
        logger.warning("%s", text)
        self.coverage.note(text)

    def trains(self, weight: Weight) -> bool:
        """Whether the optimizer updates the parameter; the parameter groups hold flat copies instead."""
        return self._parts.knows(weight.parameter) if self._parts is not None else weight.parameter.requires_grad

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Hook the accumulation of gradients, in front of DeepSpeed's own hooks."""
        trained = [weight for weight in weights if weight.parameter.requires_grad]
        if self._reduces_each_micro_step() and self._sums is None:
            nbytes = sum(_numel(weight.parameter) * self._sum_dtype(weight.parameter).itemsize for weight in trained)
            self._sums = LocalSums(nbytes, self._report_refusal)
            registrations.callback(self._sums.clear)
        for weight in trained:
            registrations.add(register_first(weight.parameter, _Accumulated(self, weight, on_ready)))

    def _report_refusal(self, reason: str) -> None:
        text = (
            f"grad_unreduced: {self.engine} reduces every micro-step and keeps no sum of the rank's own gradients; to "
            f"keep one, {reason}. Each row is of one micro-step alone, the last one where there is one row a step"
        )
        logger.warning("%s", text)
        self.coverage.note(text)

    def read(self, weight: Weight, on_ready: OnReady) -> None:
        """Autograd has added to the gradient of a parameter, and DeepSpeed has not seen it yet."""
        parameter = weight.parameter
        gradient = parameter.grad
        # Not ready: one of several passes that a tiled computation makes within one backward.
        if gradient is None or not getattr(parameter, "ds_grad_is_ready", True):
            return
        last = self._at_boundary()
        earlier = None if self._parts is None else self._parts.local_sum(parameter)
        if self._sums is not None and not getattr(self.optimizer, "_coalesce_grad_reduction", False):
            gradient = self._sums.add(parameter, gradient, last=last, dtype=self._sum_dtype(parameter))
        elif earlier is not None:
            gradient = earlier + gradient
        on_ready([(weight, gradient)], scale=self.scale(), complete=last)

    def step_ends(self, *, skipped: bool) -> None:
        """The optimizer's step is over."""
        if self._sums is not None:
            self._sums.clear()

    def _reduces_each_micro_step(self) -> bool:
        return _stage(self.optimizer) >= 2

    def _at_boundary(self) -> bool:
        """Whether this backward completes the accumulation, as far as DeepSpeed knows."""
        if getattr(self._engine, "inside_no_sync_ctxt", False):
            return False
        # A method of the engine; an attribute of the optimizer in some versions.
        owner = self.optimizer if self._engine is None else self._engine
        boundary = getattr(owner, "is_gradient_accumulation_boundary", False)
        return bool(boundary() if callable(boundary) else boundary)

    def _sum_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        dtype = getattr(self.optimizer, "gradient_accumulation_dtype", None)
        return dtype if isinstance(dtype, torch.dtype) else parameter.dtype

    def scale(self) -> float | torch.Tensor | None:
        """DeepSpeed's loss scale, or that of the scaler that it uses under autocast; what an update consumes has been
        unscaled."""
        if self._updating:
            return None
        scaler = getattr(self.optimizer, "torch_autocast_gradscaler", None) or getattr(
            self._engine, "torch_autocast_z0_gradscaler", None
        )
        scale = getattr(self.optimizer, "loss_scale", None) if scaler is None else getattr(scaler, "_scale", None)
        if scale is None or (isinstance(scale, int | float) and (scale == 1 or not self._scales)):
            return None
        return scale  # type: ignore[no-any-return]

    def attach_update(
        self, on_update: Callable[[], None], steps: OptimizerSteps[Any], registrations: Registrations
    ) -> None:
        """Hook the inner optimizers: DeepSpeed unscales and clips gradients inside of its own step, and updates one
        parameter group after the other."""
        inner = [] if self._parts is None else list(self._parts.inner_optimizers())
        for one in inner:
            registrations.add(one.register_step_pre_hook(_Updates(self, on_update)))
        if not inner:
            super().attach_update(on_update, steps, registrations)

    def read_update(self, inner: Any, on_update: Callable[[], None]) -> None:
        """An inner optimizer is about to consume the gradients of its parameter groups."""
        assert self._parts is not None
        self._updating = True
        try:
            self._parts.begin_update(inner)
            on_update()
        finally:
            self._parts.end_update()
            self._updating = False

    def skipped(self, result: Any) -> bool:
        """Whether the step that has just ended found an overflow and changed nothing."""
        return bool(getattr(self.optimizer, "overflow", False))

    def reduced(self, weight: Weight) -> torch.Tensor | None:
        """The rank's part of the averaged gradient."""
        return None if self._parts is None else self._parts.gradient(weight.parameter)

    def value(self, weight: Weight) -> torch.Tensor | None:
        """The rank's part of the weight, in the optimizer's precision."""
        return None if self._parts is None else self._parts.weight(weight.parameter)

    def moments(self, weight: Weight) -> ParameterState:
        """The rank's parts of the moments."""
        return ParameterState() if self._parts is None else self._parts.moments(weight.parameter)

    def writes(self, weight: Weight, data_type: str) -> bool:
        """As without an engine, but nothing that cannot be read."""
        if self._parts is None and data_type != "grad_unreduced":
            self.coverage.explain(data_type, weight.name, UNKNOWN_PLACE, stage=weight.vpp_stage)
            return False
        return super().writes(weight, data_type)

    def layout(self, weight: Weight) -> Layout | None:
        """The data-parallel group takes the mean; of experts, of sequence parallelism and of optimizers that
        communicate by themselves it is not known who does what."""
        engine, optimizer = self._engine, self.optimizer
        group = getattr(engine, "data_parallel_group", None) or getattr(optimizer, "dp_process_group", None)
        inner = [] if self._parts is None else list(self._parts.inner_optimizers())
        by_itself = any(type(one).__name__.startswith(("Onebit", "ZeroOne")) for one in (optimizer, *inner))
        several = (getattr(engine, "sequence_parallel_size", 1) or 1) > 1
        if group is None or by_itself or several or not getattr(weight.parameter, "allreduce", True):
            return super().layout(weight)
        ranks = {"data": group_ranks(group)}
        if not getattr(engine, "gradient_average", True):
            return Layout(equal_over=ranks, summed_over=ranks, divided_by=1)
        dtype = str(getattr(engine, "communication_data_type", None) or "")
        return Layout(equal_over=ranks, summed_over=ranks, divided_by=len(ranks["data"]), dtype=dtype)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The rank's range; the gradient before the reduction is whole."""
        parts = self._parts
        if data_type == "grad_unreduced" or parts is None or not parts.sharded or not parts.knows(weight.parameter):
            return None
        start, stop = parts.range(weight.parameter)
        return Shard(_shape(weight.parameter), (stop - start,), f"{start}:{stop}")


class _Accumulated(Hook):
    """Held by autograd, and so leads to no parameter; see `msmon_hooks.torch.grads.accumulated`."""

    def __init__(self, source: DeepSpeedGradients, weight: Weight, on_ready: OnReady) -> None:
        super().__init__(source.guard)
        self.source = weakref.ref(source)
        self.weight = weakref.ref(weight)
        self.on_ready = on_ready

    def fire(self, parameter: torch.Tensor) -> None:
        source, weight = self.source(), self.weight()
        if self.on_ready.wanted and source is not None and weight is not None:
            source.read(weight, self.on_ready)


class _Updates(Hook):
    def __init__(self, source: DeepSpeedGradients, on_update: Callable[[], None]) -> None:
        super().__init__(source.update_guard)
        self.source = source
        self.on_update = on_update

    def fire(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.source.read_update(optimizer, self.on_update)


def _from_deepspeed(value: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "deepspeed" for cls in type(value).__mro__)


def _owner(parameter: nn.Parameter) -> Any:
    """DeepSpeed's optimizer, where it left a reference to itself on the parameter (ZeRO 1 to 3)."""
    return getattr(parameter, "_z3_optimizer", None) or getattr(parameter, "_zero_optimizer", None)


def _candidates(engine: Any, models: Sequence[nn.Module], optimizer: Any) -> Iterator[Any]:
    yield getattr(engine, "optimizer", None)
    yield optimizer if _from_deepspeed(optimizer) and not is_a(optimizer, "Optimizer") else None
    for model in models:
        for parameter in model.parameters():
            yield _owner(parameter)


def _deepspeed_optimizer(engine: Any, models: Sequence[nn.Module], optimizer: Any) -> Any:
    return next((one for one in _candidates(engine, models, optimizer) if one is not None), optimizer)


def _stage(optimizer: Any) -> int:
    if is_a(optimizer, "DeepSpeedZeroOptimizer_Stage3"):
        return 3
    if is_a(optimizer, "DeepSpeedZeroOptimizer"):
        return 2 if getattr(optimizer, "partition_gradients", False) else 1
    return 1 if is_a(optimizer, "BF16_Optimizer") else 0


def _scales_loss(optimizer: Any) -> bool:
    """Whether the engine multiplies the loss by the optimizer's scale.

    Engines that scale by a method of the ZeRO optimizers pass the half-precision optimizers of ZeRO 0 over.
    """
    zero = getattr(sys.modules.get("deepspeed.runtime.base_optimizer"), "ZeROOptimizer", None)
    return hasattr(optimizer, "scale_if_loss") or not hasattr(zero, "scale_if_loss")


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _numel(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _version() -> str:
    return str(getattr(sys.modules.get("deepspeed"), "__version__", "of an unknown version"))
