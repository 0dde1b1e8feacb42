"""A rank's own gradient, summed over micro-steps, where the engine reduces every micro-step and keeps no such sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SHARE = 0.5
"""Of the free memory of an accelerator, the most that the sums may take."""


class LocalSums:
    """Adds up gradients in memory of its own: as much as the gradients of one micro-step.

    On an accelerator that has not got that much to spare nothing is added up: running out of memory would end the
    training.

    Args:
        nbytes: what all sums together will take.
        on_refusal: called once, with a sentence, when there is too little memory.
    """

    def __init__(self, nbytes: int, on_refusal: Callable[[str], None]) -> None:
        self._nbytes = nbytes
        self._on_refusal = on_refusal
        self._sums: dict[int, torch.Tensor] = {}
        self._refused = False

    def add(self, parameter: nn.Parameter, gradient: torch.Tensor, *, last: bool, dtype: torch.dtype) -> torch.Tensor:
        """The sum with this gradient in it; where sums are refused, the gradient itself.

        Args:
            parameter: whose gradient.
            gradient: of one micro-step; not kept, not changed.
            last: the sum is complete with it, and is forgotten.
            dtype: of the sum.
        """
        total = self._sums.pop(id(parameter), None)
        if total is None:
            if last or self._refuses(gradient.device):
                return gradient
            total = gradient.to(dtype, copy=True)
        else:
            total.add_(gradient)
        if not last:
            self._sums[id(parameter)] = total
        return total

    def clear(self) -> None:
        """Forget all sums: the step is over."""
        self._sums.clear()

    def _refuses(self, device: torch.device) -> bool:
        if not self._sums and not self._refused:
            free = free_memory(device)
            if free is not None and self._nbytes > free * SHARE:
                self._refused = True
                needed, free = self._nbytes // 2**20, free // 2**20
                self._on_refusal(f"{needed} MiB would be needed, and {free} MiB of {device} are free")
        return self._refused


def free_memory(device: torch.device) -> int | None:
    """Bytes that an accelerator can still give, or None where it does not say (and for the CPU)."""
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "mem_get_info"):
        return None
    kept = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0]) + int(kept)
