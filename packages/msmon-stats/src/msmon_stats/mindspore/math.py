"""MindSpore's operators for the features; those that every device has."""

from __future__ import annotations

import contextlib
from typing import Any

import mindspore
from mindspore import Tensor, mint, ops

from msmon_stats.features.math import Math


def _plain(tensor: Any) -> Any:
    return ops.stop_gradient(Tensor(tensor) if isinstance(tensor, mindspore.Parameter) else tensor)


def _where(mask: Any, inside: Any, outside: Any) -> Any:
    if not isinstance(inside, Tensor):
        return outside.masked_fill(mask, inside)
    if not isinstance(outside, Tensor):
        return inside.masked_fill(mint.logical_not(mask), outside)
    return mint.where(mask, inside, outside)


def _sum(tensor: Any, axis: int | None = None) -> Any:
    return mint.sum(tensor) if axis is None else mint.sum(tensor, axis)


def _wide(tensor: Any) -> Any:
    return tensor.astype(mindspore.float64)


def _norm(tensor: Any) -> Any:
    wide = _wide(tensor)
    return mint.sqrt(mint.sum(wide * wide))


def _bincount(index: Any, slots: int) -> Any:
    return ops.stack([mint.sum(mint.eq(index, slot).astype(mindspore.float64)) for slot in range(slots)])


MATH = Math(
    quiet=lambda _: contextlib.nullcontext(),
    plain=_plain,
    single=lambda tensor: tensor if tensor.dtype == mindspore.float64 else tensor.astype(mindspore.float32),
    wide=_wide,
    whole=_wide,
    like=lambda tensor, other: tensor.astype(other.dtype),
    exp=mint.exp,
    expm1=mint.expm1,
    log=mint.log,
    sqrt=mint.sqrt,
    sign=mint.sign,
    isnan=mint.isnan,
    where=_where,
    minus=lambda a, b, c: a - b * c,
    norm=_norm,
    sum=_sum,
    largest=mint.amax,
    largest_size=lambda tensor: mint.max(mint.abs(tensor)),
    stack=ops.stack,
    constant=lambda numbers, _: Tensor(numbers, mindspore.float64),
    arange=lambda stop, _: ops.arange(0, stop),
    searchsorted=lambda edges, tensor: mint.searchsorted(edges, tensor, right=True),
    bincount=_bincount,
    chunk=lambda _: 1 << 16,
)
"""See `msmon_stats.features.math.Math`."""
