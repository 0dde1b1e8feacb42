"""Partials by MindSpore's own operators, for tensors on an accelerator."""

from __future__ import annotations

import math
from typing import Any

import mindspore
from mindspore import Tensor, mint, ops

from msmon_stats.fields import COUNT, MAX, MIN, SUM, ZEROS
from msmon_stats.mindspore.values import is_sparse

# A chunk bounds the temporaries (a float64 copy, masks); few chunks keep the number of launches low.
_MIN_CHUNK = 1 << 18
_COMPLEX = (mindspore.complex64, mindspore.complex128)


def accumulate(tensor: Any, eps: Any) -> Any:
    """The partials of a supported tensor, float64 `[8]` on its device."""
    implicit = 0
    if is_sparse(tensor):
        stored = (tensor.coalesce() if isinstance(tensor, mindspore.COOTensor) else tensor).values
        implicit = math.prod(tensor.shape) - stored.size
        tensor = stored
    flat = ops.stop_gradient(tensor).reshape(-1)
    size = max(_MIN_CHUNK, flat.size >> 8)
    parts = [_partials(flat[start : start + size], eps) for start in range(0, flat.size, size)]
    if implicit:
        parts.append(_implicit_zeros(implicit, eps))
    if not parts:
        return Tensor([0, 0, 0, 0, math.inf, -math.inf, 0, 0], mindspore.float64)
    return parts[0] if len(parts) == 1 else _merged(ops.stack(parts))


def _partials(flat: Any, eps: Any) -> Any:
    f64 = mindspore.float64
    wide = (ops.abs(flat) if flat.dtype in _COMPLEX else flat).astype(f64)
    nan = mint.ne(wide, wide)
    known = wide.masked_fill(nan, 0.0)
    size = mint.abs(known)
    nans = mint.sum(nan.astype(f64))
    return ops.stack(
        (
            Tensor(float(flat.size), f64),
            nans,
            mint.sum(mint.eq(size, math.inf).astype(f64)),
            # A NaN stands there as 0; it is none.
            mint.sum(mint.logical_and(mint.lt(size, eps), mint.logical_not(nan)).astype(f64)),
            mint.min(wide.masked_fill(nan, math.inf)),
            mint.max(wide.masked_fill(nan, -math.inf)),
            mint.sum(known),
            mint.sum(mint.mul(known, known)),
        )
    )


def _implicit_zeros(count: int, eps: Any) -> Any:
    row = [0.0] * 8
    row[COUNT] = float(count)
    zeros = Tensor(row, mindspore.float64)
    counted = Tensor([float(count) if field == ZEROS else 0.0 for field in range(8)], mindspore.float64)
    positive = (Tensor(eps, mindspore.float64) > 0).astype(mindspore.float64)
    return zeros + counted * positive


def _merged(parts: Any) -> Any:
    low, high = mint.amin(parts[:, MIN:MAX], 0), mint.amax(parts[:, MAX:SUM], 0)
    return ops.concat((mint.sum(parts[:, :MIN], 0), low, high, mint.sum(parts[:, SUM:], 0)))
