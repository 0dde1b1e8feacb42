"""English text that every Python has, as bytes."""

from __future__ import annotations

import pydoc_data.topics

import torch


def tokens() -> torch.Tensor:
    """The help texts of Python's own documentation, one token per byte: int64 of shape [n], values below 256."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def batches(data: torch.Tensor, *, steps: int, size: int, length: int, seed: int) -> list[torch.Tensor]:
    """`steps` random batches, each int64 `[size, length + 1]`: inputs and, shifted by one, targets."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - length - 1, (steps, size), generator=generator)
    return [torch.stack([data[start : start + length + 1] for start in row]) for row in starts]
