"""Over which groups of ranks Megatron splits a parameter."""

from __future__ import annotations

import sys
from typing import Any

from attrs import frozen
from torch import nn


@frozen(kw_only=True)
class Split:
    """A parameter is split along a dimension; this rank has one of the pieces."""

    name: str
    rank: int
    size: int
    dimension: int | None
    """None: the pieces are tensors of their own, one beside the other (experts)."""

    @property
    def part(self) -> str:
        """Which piece it is."""
        return f"{self.name}:{self.rank}/{self.size}"

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of all pieces together.

        Example:
            >>> Split(name="tp", rank=0, size=2, dimension=1).whole((3, 4))
            (3, 8)
            >>> Split(name="ep", rank=0, size=2, dimension=None).whole((3, 4))
            (2, 3, 4)
        """
        if self.dimension is None:
            return (self.size, *shape)
        return tuple(size * self.size if index == self.dimension else size for index, size in enumerate(shape))


def splits_of(parameter: nn.Parameter) -> list[Split]:
    """The splits of a parameter; empty where every rank of a data-parallel group has all of it.

    Megatron marks parameters that are split over the tensor-parallel group, and those of experts.
    """
    expert = is_expert(parameter)
    splits = []
    if getattr(parameter, "tensor_model_parallel", False):
        name = "expert_tensor_parallel" if expert else "tensor_model_parallel"
        rank, size = _place(name) or _place("tensor_model_parallel") or (0, 1)
        if size > 1:
            splits.append(Split(name="tp", rank=rank, size=size, dimension=getattr(parameter, "partition_dim", 0)))
    if expert:
        rank, size = _place("expert_model_parallel") or (0, 1)
        if size > 1:
            splits.append(Split(name="ep", rank=rank, size=size, dimension=None))
    return splits


def is_expert(parameter: nn.Parameter) -> bool:
    """Whether the parameter belongs to an expert that not every data-parallel rank has."""
    return not getattr(parameter, "allreduce", True)


def data_parallel_size(parameter: nn.Parameter) -> int:
    """How many ranks have the same part of the parameter, each with its own batches; 0: not known."""
    name = "expert_data_parallel" if is_expert(parameter) else "data_parallel"
    return (_place(name) or (0, 0))[1]


def _place(group: str) -> tuple[int, int] | None:
    """This process's rank in one of Megatron's groups, and the group's size; None where there is no such group."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    rank, size = (getattr(state, f"get_{group}_{what}", None) for what in ("rank", "world_size"))
    if rank is None or size is None:
        return None
    try:
        return int(rank()), int(size())
    except (AssertionError, RuntimeError):
        # Not initialised.
        return None
