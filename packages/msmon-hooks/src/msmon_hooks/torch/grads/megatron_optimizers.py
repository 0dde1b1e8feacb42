"""Where Megatron's optimizers keep the weight, gradient and moments of a model's parameter: this rank's range."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from attrs import evolve, frozen
from torch import nn

from msmon_hooks.parameter_state import ParameterState
from msmon_hooks.torch.moments import StateReader


@frozen(kw_only=True, eq=False)
class Held:
    """What an optimizer has of one parameter."""

    parameter: nn.Parameter
    optimizer: Any
    """The Megatron optimizer, of those that are chained."""
    main: torch.Tensor
    """The tensor that the inner optimizer updates: the parameter, a copy in single precision, or a range of either."""
    start: int
    stop: int
    """The range in the flattened parameter."""
    states: StateReader
    """Reads the state of the inner optimizer."""

    def weight(self) -> torch.Tensor:
        """The weight in the optimizer's precision."""
        states = getattr(self.optimizer.optimizer, "state", {})
        # Precision-aware optimizers keep the copy in single precision among their state.
        copy = states[self.main].get("master_param") if self.main in states else None
        return (self.main if copy is None else copy).detach()

    def moments(self) -> ParameterState:
        """The moments as they stand now."""
        state = self.states.of(self.main)
        if "master_param" not in state.tensors:
            return state
        # It is the weight, and has a row as such.
        return evolve(state, tensors={name: one for name, one in state.tensors.items() if name != "master_param"})

    def consumed(self) -> torch.Tensor | None:
        """The gradient that the inner optimizer is about to consume: reduced, unscaled and clipped."""
        decoupled: torch.Tensor | None = getattr(self.main, "decoupled_grad", None)
        if decoupled is not None:
            return decoupled.detach()
        if self.main.is_leaf:
            return None if self.main.grad is None else self.main.grad.detach()
        # A view of a parameter in single precision: its gradient is the same view of main_grad.
        return self.reduced()

    def reduced(self) -> torch.Tensor | None:
        """The reduced gradient before the optimizer's step."""
        gradient = getattr(self.parameter, "main_grad", None)
        gradient = self.parameter.grad if gradient is None else gradient
        if gradient is None:
            return None
        part: torch.Tensor = gradient.detach().view(-1)[self.start : self.stop]
        return part.view(self.main.shape)


def chained(optimizer: Any) -> Iterator[Any]:
    """The optimizer itself, or those that it chains."""
    inner = getattr(optimizer, "chained_optimizers", None)
    if inner is None:
        yield optimizer
    else:
        for one in inner:
            yield from chained(one)


def is_split(optimizer: Any) -> bool:
    """Whether ranks update different parts: a distributed optimizer."""
    return any(hasattr(one, "model_param_gbuf_map") for one in chained(optimizer)) or any(
        cls.__name__ == "LayerWiseDistributedOptimizer" for cls in type(optimizer).__mro__
    )


def held_by(optimizer: Any) -> list[Held]:
    """Everything that the optimizer updates on this rank."""
    return [held for one in chained(optimizer) for held in _held(one)]


def _held(optimizer: Any) -> Iterator[Held]:
    if getattr(optimizer, "is_stub_optimizer", False) or getattr(optimizer, "optimizer", None) is None:
        return
    states = StateReader(optimizer.optimizer)
    if hasattr(optimizer, "model_param_gbuf_map"):
        for parameter, main in _distributed(optimizer):
            place = optimizer._get_model_param_range_map(parameter)["param"]
            yield Held(
                parameter=parameter,
                optimizer=optimizer,
                main=main,
                start=place.start,
                stop=place.end,
                states=states,
            )
        return
    copies = dict(_copies(optimizer))
    for parameter in chain(*(group["params"] for group in optimizer.optimizer.param_groups)):
        model_parameter = copies.get(id(parameter), parameter)
        yield Held(
            parameter=model_parameter,
            optimizer=optimizer,
            main=parameter,
            start=0,
            stop=model_parameter.numel(),
            states=states,
        )


def _copies(optimizer: Any) -> Iterator[tuple[int, nn.Parameter]]:
    """Of `Float16OptimizerWithFloat16Params`: the model's parameter by its copy in single precision."""
    originals = getattr(optimizer, "float16_groups", ())
    for parameters, mains in zip(originals, getattr(optimizer, "fp32_from_float16_groups", ()), strict=True):
        for parameter, main in zip(parameters, mains, strict=True):
            yield id(main), parameter


def _distributed(optimizer: Any) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Of `DistributedOptimizer`: the model's parameters with the ranges that are updated."""
    groups = zip(
        optimizer.model_float16_groups,
        optimizer.shard_fp32_from_float16_groups,
        optimizer.shard_float16_groups,
        strict=True,
    )
    for parameters, mains, shards in groups:
        for parameter, main, shard in zip(parameters, mains, shards, strict=True):
            # Precision-aware optimizers have no copies here.
            yield parameter, shard if main is None else main
    for parameters, mains in zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True):
        yield from zip(parameters, mains, strict=True)
