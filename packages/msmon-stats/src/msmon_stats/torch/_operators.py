"""Partials by torch's own operators: for devices without a kernel of ours, and for every dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from msmon_stats._fields import COUNT, ZEROS
from msmon_stats.torch._values import stored

_MIN_CHUNK = 1 << 16


def accumulate(tensor: torch.Tensor, eps: Any, row: torch.Tensor) -> None:
    """Write the partials of a local tensor into a row of 8, without waiting for the device."""
    values, implicit = stored(tensor)
    if values.numel() == 0:
        row.copy_(row.new_tensor([0, 0, 0, 0, float("inf"), float("-inf"), 0, 0]))
    else:
        parts = [_partials(chunk, eps) for chunk in _chunks(values)]
        row.copy_(parts[0] if len(parts) == 1 else _merged(torch.stack(parts)))
    if implicit:
        row[COUNT] += implicit
        row[ZEROS] += implicit
        row[4].clamp_(max=0.0)
        row[5].clamp_(min=0.0)


def _chunks(values: torch.Tensor) -> Iterator[torch.Tensor]:
    size = max(_MIN_CHUNK, values.numel() // 1024)
    if values.numel() <= size:
        yield values.reshape(-1)
        return
    # The widest dimension first: a permuted dense tensor is then read in the order of memory.
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    values = values.permute(order)
    if values.is_contiguous():
        yield from values.view(-1).split(size)
        return
    for part in values.split(max(1, size * len(values) // values.numel())):
        if part.numel() <= size:
            yield part.reshape(-1)
        else:
            yield from _chunks(part.squeeze(0))


def _partials(values: torch.Tensor, eps: Any) -> torch.Tensor:
    wide = values.to(torch.float64)
    nan = wide.isnan()
    finite_or_inf = wide.masked_fill(nan, 0.0)
    return torch.stack(
        (
            torch.full((), float(values.numel()), dtype=torch.float64, device=values.device),
            nan.sum(dtype=torch.float64),
            wide.isinf().sum(dtype=torch.float64),
            (wide.abs() < eps).sum(dtype=torch.float64),
            wide.masked_fill(nan, float("inf")).amin(),
            wide.masked_fill(nan, float("-inf")).amax(),
            finite_or_inf.sum(),
            finite_or_inf.square().sum(),
        )
    )


def _merged(parts: torch.Tensor) -> torch.Tensor:
    return torch.cat((parts[:, :4].sum(0), parts[:, 4:5].amin(0), parts[:, 5:6].amax(0), parts[:, 6:].sum(0)))
