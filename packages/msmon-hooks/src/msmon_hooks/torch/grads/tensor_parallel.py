"""Tensor parallelism by DTensor (`parallelize_module`): each rank has the gradient of its part of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve
from torch import distributed, nn

from msmon_hooks.events import Shard
from msmon_hooks.layout import ALONE, Layout
from msmon_hooks.parameters import Weight
from msmon_hooks.torch.grads.plain import PlainGradients
from msmon_hooks.torch.mesh_shards import is_partial, mesh_shard

PARTIAL = "until the optimizer's step each rank holds only a summand of it"


class TensorParallelGradients(PlainGradients):
    """Parameters are DTensors; activations may be."""

    engine = "tensor_parallel"

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether a parameter is a DTensor."""
        return any(hasattr(parameter, "_local_tensor") for model in models for parameter in model.parameters())

    def reduced(self, weight: Weight) -> torch.Tensor | None:
        """The rank's part, but None for parameters that are replicated while their inputs are split (sequence
        parallelism): torch adds such gradients up inside the optimizer's step, in operators of its own."""
        gradient = super().reduced(weight)
        if gradient is not None and is_partial(gradient):
            self.coverage.explain("grad_reduced", weight.name, PARTIAL, stage=weight.vpp_stage)
            return None
        return gradient

    def layout(self, weight: Weight) -> Layout | None:
        """Replicas are equal over the mesh. Who reduces what is known where the mesh has all ranks: nobody."""
        mesh = getattr(weight.parameter, "device_mesh", None)
        if mesh is None:
            return super().layout(weight)
        ranks = {"tensor": mesh.mesh.flatten().tolist()}
        if len(ranks["tensor"]) < distributed.get_world_size():
            return Layout(equal_over=ranks)
        part = self.shard(weight, "grad_unreduced")
        return evolve(ALONE, equal_over=ranks, numel=None if part is None else part.local_numel)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The rank's part, the same for all data types."""
        return mesh_shard(weight.parameter)
