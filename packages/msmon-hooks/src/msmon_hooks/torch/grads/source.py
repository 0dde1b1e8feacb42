"""The answers that most of PyTorch's engines share."""

from __future__ import annotations

import torch

from msmon_hooks import gradients
from msmon_hooks.events import Shard
from msmon_hooks.gradients import OnReady
from msmon_hooks.parameters import Weight
from msmon_hooks.torch.mesh_shards import mesh_shard
from msmon_hooks.torch.moments import moments
from msmon_hooks.torch.parameters import named_weights

__all__ = ["GradientSource", "OnReady"]


class GradientSource(gradients.GradientSource):
    """Gradients in `param.grad` or `param.main_grad`, moments in `optimizer.state`, shards as DTensors."""

    def weights(self) -> list[Weight]:
        """Every parameter, under its plain name."""
        return named_weights(self.models)

    def reduced(self, weight: Weight) -> torch.Tensor | None:
        """The gradient that the optimizer consumes, or None where there is none."""
        main_grad = getattr(weight.parameter, "main_grad", None) if self.main_grad else None
        return main_grad if main_grad is not None else weight.parameter.grad

    def value(self, weight: Weight) -> torch.Tensor | None:
        """The weight that the optimizer updates."""
        return weight.parameter.detach()

    def moments(self, weight: Weight) -> dict[str, torch.Tensor]:
        """`exp_avg` and `exp_avg_sq` as they stand now, as far as they exist."""
        return moments(self.optimizer, weight.parameter)

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The part of a DTensor that this rank holds."""
        return mesh_shard(weight.parameter)
