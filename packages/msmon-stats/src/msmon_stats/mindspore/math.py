"""MindSpore's operators for the features; those that every device has."""

from __future__ import annotations

import contextlib
from typing import Any

import mindspore
from mindspore import Tensor, mint, ops

from msmon_stats.features.math import Math
from msmon_stats.float32 import limit
from msmon_stats.mindspore.values import on_host


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


def _widest(tensor: Any) -> Any:
    # On an accelerator float64 is slow or does not exist, and none of its operators is used.
    return mindspore.float64 if on_host(tensor) else mindspore.float32


def _single(tensor: Any) -> Any:
    return tensor if tensor.dtype == mindspore.float64 and on_host(tensor) else tensor.astype(mindspore.float32)


def _wide(tensor: Any) -> Any:
    return tensor.astype(_widest(tensor))


def _whole_dtype(tensor: Any) -> Any:
    return mindspore.float64 if on_host(tensor) else mindspore.int32


def _constant(numbers: tuple[float, ...], like: Any) -> Any:
    exact = on_host(like)
    return Tensor(numbers if exact else [limit(one) for one in numbers], _widest(like))


def _norm(tensor: Any) -> Any:
    wide = _wide(tensor)
    return mint.sqrt(mint.sum(wide * wide))


def _bincount(index: Any, slots: int) -> Any:
    dtype = _whole_dtype(index)
    return ops.stack([mint.sum(mint.eq(index, slot).astype(dtype)) for slot in range(slots)])


MATH = Math(
    quiet=lambda _: contextlib.nullcontext(),
    plain=_plain,
    single=_single,
    wide=_wide,
    whole=lambda tensor: tensor.astype(_whole_dtype(tensor)),
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
    constant=_constant,
    arange=lambda stop, _: ops.arange(0, stop),
    searchsorted=lambda edges, tensor: mint.searchsorted(edges, tensor, right=True),
    bincount=_bincount,
    chunk=lambda _: 1 << 16,
)
"""See `msmon_stats.features.math.Math`."""
