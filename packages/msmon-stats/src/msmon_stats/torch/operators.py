"""Partials by torch's own operators: for devices without a kernel of ours, and the check on those kernels."""

from __future__ import annotations

import math
from typing import Any

import torch

from msmon_stats.fields import COUNT, MAX, MIN, SUM, WIDTH, ZEROS
from msmon_stats.rows import COUNTED
from msmon_stats.torch.values import PIECE, Reading, read
from msmon_stats.torch.words import write_fields


def accumulate(tensor: torch.Tensor, eps: Any, row: torch.Tensor) -> None:
    """Write the partials of a supported local tensor into a row of 8, or of 10 with a fingerprint, without waiting for
    the device."""
    if len(row) > WIDTH:
        write_fields(tensor, row[WIDTH:])
        row = row[:WIDTH]
    reading = read(tensor)
    parts = []
    for values in reading.pieces:
        # Pieces of a thousandth bound the temporaries: a float64 copy, masks.
        parts += [_partials(piece, eps) for piece in values.split(max(PIECE, values.numel() >> 10))]
    if parts:
        row.copy_(parts[0] if len(parts) == 1 else merged(torch.stack(parts)))
    else:
        row.zero_()
        row[MIN].fill_(math.inf)
        row[MAX].fill_(-math.inf)
    correct(row, reading, eps)


def correct(row: torch.Tensor, reading: Reading, eps: Any) -> None:
    """Account for elements that are stored once for many, or not at all."""
    if reading.times != 1:
        for field in COUNTED:
            row[field].mul_(reading.times)
    if reading.implicit:
        row[COUNT].add_(reading.implicit)
        row[ZEROS].add_(torch.as_tensor(eps > 0, dtype=row.dtype, device=row.device) * reading.implicit)
        row[MIN].clamp_(max=0.0)
        row[MAX].clamp_(min=0.0)


def _partials(values: torch.Tensor, eps: Any) -> torch.Tensor:
    wide = values.to(torch.float64)
    nan = wide.isnan()
    known = wide.masked_fill(nan, 0.0)
    return torch.stack(
        (
            torch.full((), float(values.numel()), dtype=torch.float64, device=values.device),
            nan.sum(dtype=torch.float64),
            wide.isinf().sum(dtype=torch.float64),
            (wide.abs() < eps).sum(dtype=torch.float64),
            wide.masked_fill(nan, math.inf).amin(),
            wide.masked_fill(nan, -math.inf).amax(),
            known.sum(),
            known.square().sum(),
        )
    )


def merged(parts: torch.Tensor) -> torch.Tensor:
    """Rows `[n, 8]` of the parts of one tensor merged into `[8]`, or of 10 columns."""
    low, high = parts[:, MIN:MAX].amin(0), parts[:, MAX:SUM].amax(0)
    return torch.cat((parts[:, :MIN].sum(0), low, high, parts[:, SUM:].sum(0)))
