"""One training on this rank, and the places in it where something can be put wrong from the outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import field, frozen
from torch import distributed

from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.detect import find_source
from msmon_hooks.torch.grads.megatron_optimizers import chained
from msmon_hooks.torch.mesh_shards import local_part

from ..prove import Trained


@frozen(kw_only=True)
class Place:
    """What was drawn for a fault, the same on all ranks."""

    step: int
    rank: int
    tensor: str
    layer: tuple[str, ...]
    """Names of the tensors of that tensor's module."""
    factor: float
    """A number between 0 and 1, for whatever a fault needs."""


@frozen(kw_only=True)
class Truth:
    """What a verification should say."""

    step: int
    tensors: tuple[str, ...]
    """Any of them is right; empty: all are concerned, so that any is right, or none."""
    ranks: tuple[int, ...]
    any_rank: bool = False
    """Whether some of these ranks are as right as all: each has a fault in its own part."""
    recorded: bool = True
    """Whether what was recorded can show it: `docs/verify.md` says what cannot."""


@frozen(kw_only=True, eq=False)
class Scene:
    """The tensors of a training by their names, wherever the engine keeps them."""

    trained: Trained
    data_group: Any
    """The ranks that the gradients are averaged over."""
    source: Any = field(init=False)
    weights: dict[str, Weight] = field(init=False)
    own: dict[str, torch.Tensor] = field(init=False, factory=dict)
    """The gradients of the step in flight as they were on this rank before any reduction."""
    registrations: Registrations = field(init=False, factory=Registrations)

    def __attrs_post_init__(self) -> None:
        models = self.trained.model if isinstance(self.trained.model, list) else [self.trained.model]
        source = find_source(models, self.trained.optimizer, main_grad=True)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "weights", {one.name: one for one in source.weights() if source.trains(one)})

    @property
    def rank(self) -> int:
        """Of this process."""
        return distributed.get_rank()

    @property
    def world(self) -> int:
        """All ranks."""
        return distributed.get_world_size()

    def module(self) -> torch.nn.Module:
        """The model inside of the engine's wrappers."""
        model = self.trained.model[0] if isinstance(self.trained.model, list) else self.trained.model
        while hasattr(model, "module"):
            model = model.module
        return model

    def value(self, name: str) -> torch.Tensor | None:
        """The rank's part of a weight, where the optimizer updates it."""
        value = self.source.value(self.weights[name]) if name in self.weights else None
        return None if value is None else local_part(value)

    def moment(self, name: str, key: str) -> torch.Tensor | None:
        """The rank's part of a moment."""
        found = self.source.moments(self.weights[name]).tensors.get(key) if name in self.weights else None
        return None if found is None else local_part(found)

    def gradient(self, name: str) -> torch.Tensor | None:
        """The rank's part of the gradient that is about to be consumed, while it is."""
        found = self.source.reduced(self.weights[name]) if name in self.weights else None
        return None if found is None or not local_part(found).numel() else local_part(found)

    def part(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's elements of a whole gradient."""
        parameter = self.weights[name].parameter
        for dimension, placement in enumerate(getattr(parameter, "placements", ())):
            if hasattr(placement, "dim"):
                chunks = whole.chunk(parameter.device_mesh.size(dimension), placement.dim)
                at = parameter.device_mesh.get_coordinate()[dimension]
                whole = chunks[at] if at < len(chunks) else whole[:0]
        parts = getattr(self.source, "_parts", None)
        if parts is not None and parts.sharded:
            start, stop = parts.range(parameter)
            return whole.reshape(-1)[start:stop]
        return whole

    def owns(self, name: str) -> list[torch.Tensor]:
        """The own gradients of all ranks that the gradient is averaged over: a collective."""
        own = self.own[name].contiguous()
        found = [torch.empty_like(own) for _ in range(self.data_group.size())]
        distributed.all_gather(found, own, group=self.data_group)
        return found

    def data_rank(self, rank: int) -> int:
        """The position of a rank in the group of this rank that gets data; -1 where it is in another one."""
        ranks = distributed.get_process_group_ranks(self.data_group)
        return ranks.index(rank) if rank in ranks else -1

    def keep_own(self) -> None:
        """Keep the gradients before the reduction from now on."""
        self.source.attach(list(self.weights.values()), _Keeper(self.own), self.registrations)

    def at_update(self, call: Callable[[], None]) -> None:
        """Call when an optimizer is about to consume gradients, also if it is inside of the engine's."""
        parts = getattr(self.source, "_parts", None)
        inner = [] if parts is None else list(parts.inner_optimizers())
        if self.source.engine == "megatron":
            for one in chained(self.trained.optimizer):
                one.optimizer.register_step_pre_hook(
                    lambda *unused, one=one: self.source.read_update(one, call)  # type: ignore[misc]
                )
        elif inner:
            for one in inner:
                one.register_step_pre_hook(lambda one, *unused: self.source.read_update(one, call))
        else:
            self.trained.optimizer.register_step_pre_hook(lambda *unused: call())

    def after_update(self, call: Callable[[], None]) -> None:
        """Call when the weights have been updated."""
        parts = getattr(self.source, "_parts", None)
        inner = [] if parts is None else list(parts.inner_optimizers())
        if self.source.engine == "megatron":
            inner = [one.optimizer for one in chained(self.trained.optimizer)]
        for one in inner or [self.trained.optimizer]:
            one.register_step_post_hook(lambda *unused: call())


class _Keeper:
    wanted = True
    each_micro_step = False

    def __init__(self, own: dict[str, torch.Tensor]) -> None:
        self._own = own

    def __call__(self, entries: Sequence[tuple[Weight, Any]], **unused: Any) -> None:
        for weight, gradient in entries:
            self._own[weight.name] = local_part(gradient).detach().clone()
