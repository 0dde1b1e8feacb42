"""Agreement of a gradient with the momentum, for all kinds of gradients that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from msmon_hooks.torch.mesh_shards import local_part


def agreement(sign_agreement: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`f(gradient, momentum)` that takes sharded and sparse gradients too, and no momentum before the first update.

    Args:
        sign_agreement: see `msmon_hooks.Request`; of dense tensors.
    """
    return partial(_agreement, sign_agreement)


def _agreement(
    sign_agreement: Callable[[Any, Any], Any], gradient: torch.Tensor, momentum: torch.Tensor | None
) -> torch.Tensor:
    gradient = local_part(gradient)
    if momentum is None:
        # Adam's first momentum is a multiple of the first gradient.
        return torch.ones((), device=gradient.device)
    momentum = local_part(momentum)
    if gradient.is_complex():
        raise ValueError("a complex gradient has no sign")
    if momentum.shape != gradient.shape and momentum.squeeze().shape == gradient.squeeze().shape:
        # Optimizers that work in batches add a dimension.
        momentum = momentum.view(gradient.shape)
    if gradient.layout is torch.strided:
        return sign_agreement(gradient, momentum)
    # What a sparse gradient leaves out is zero and counts one half.
    gradient = gradient.coalesce()
    share = gradient.values().numel() / max(momentum.numel(), 1)
    stored = sign_agreement(gradient.values(), momentum.sparse_mask(gradient).coalesce().values())
    return (stored - 0.5) * share + 0.5
