"""Partials by MindSpore's own operators, for tensors on an accelerator."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import Tensor, mint, ops

# One chunk bounds the temporaries (float64 copy and masks); few chunks keep the number of launches low.
_MIN_CHUNK = 1 << 18


def accumulate(tensor: Any, eps: Any) -> Any:
    """The partials of a tensor, float64 ``[8]`` on its device."""
    if tensor.dtype in (mindspore.complex64, mindspore.complex128):
        tensor = ops.abs(tensor)
    if tensor.numel() == 0:
        inf = float("inf")
        return Tensor([0, 0, 0, 0, inf, -inf, 0, 0], mindspore.float64)
    flat = tensor.reshape(-1)
    size = max(_MIN_CHUNK, flat.shape[0] // 256)
    parts = [_partials(flat[start : start + size], eps) for start in range(0, flat.shape[0], size)]
    if len(parts) == 1:
        return parts[0]
    stacked = ops.stack(parts)
    return ops.concat(
        (
            mint.sum(stacked[:, :4], 0),
            mint.min(stacked[:, 4:5], 0)[0],
            mint.max(stacked[:, 5:6], 0)[0],
            mint.sum(stacked[:, 6:], 0),
        )
    )


def _partials(flat: Any, eps: Any) -> Any:
    f64 = mindspore.float64
    wide = flat.astype(f64)
    nan = mint.ne(wide, wide)
    known = wide.masked_fill(nan, 0.0)
    size = mint.abs(known)
    infinite = mint.eq(size, float("inf"))
    nans = mint.sum(nan.astype(f64))
    return ops.stack(
        (
            Tensor(float(flat.shape[0]), f64),
            nans,
            mint.sum(infinite.astype(f64)),
            mint.sum(mint.lt(size, eps).astype(f64)) - nans,
            mint.min(wide.masked_fill(nan, float("inf"))),
            mint.max(wide.masked_fill(nan, float("-inf"))),
            mint.sum(known),
            mint.sum(mint.mul(known, known)),
        )
    )
