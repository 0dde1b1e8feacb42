"""Tensors that are spread over a device mesh: the part on this rank, without any communication."""

from __future__ import annotations

from typing import Any

import torch

from msmon_hooks.events import Shard


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor that holds this rank's elements of a DTensor; any other tensor itself."""
    part = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def mesh_shard(tensor: torch.Tensor) -> Shard | None:
    """The part of a DTensor on this rank; None for other tensors, and for DTensors that are whole on every rank.

    Ranks along a mesh dimension over which the tensor is replicated hold the same part.
    """
    if not hasattr(tensor, "_local_tensor"):
        return None
    split = _split(tensor)
    if not split:
        return None
    return Shard(tuple(tensor.shape), tuple(tensor._local_tensor.shape), ",".join(split))


def _split(tensor: Any) -> list[str]:
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        # This rank is no part of the mesh.
        return ["none"]
    return [
        f"{placement.dim}:{coordinate[dimension]}/{mesh.size(dimension)}"
        for dimension, placement in enumerate(tensor.placements)
        # Strided shards are no subclass of Shard in every version of torch.
        if hasattr(placement, "dim") and mesh.size(dimension) > 1
    ]


def is_partial(tensor: torch.Tensor) -> bool:
    """Whether the rank's elements are only one summand of the tensor's values."""
    return any(placement.is_partial() for placement in getattr(tensor, "placements", ()))
