"""Partials of MindSpore tensors: checks, choice of kernel, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, mint, ops

from msmon_stats.choice import choose
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.fields import DEFAULT_EPS, MAX, MIN, SUM, WIDTH
from msmon_stats.mindspore import host, operators
from msmon_stats.mindspore.values import on_host, unsupported_reason
from msmon_stats.rows import Matrix


def partial(tensor: Any, eps: Any = DEFAULT_EPS, *, out: Any = None, kernel: str | None = None) -> Any:
    """See `msmon_stats.partial`."""
    row = partial_many([tensor], eps, kernel=kernel)[0]
    return row if out is None else _into(out, row)


def partial_many(tensors: Sequence[Any], eps: Any = DEFAULT_EPS, *, out: Any = None, kernel: str | None = None) -> Any:
    """See `msmon_stats.partial_many`."""
    for tensor in tensors:
        reason = unsupported_reason(tensor)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    places = {on_host(tensor) for tensor in tensors}
    if len(places) > 1:
        raise ValueError("tensors on several devices: some on the host, some not")
    if places == {True}:
        matrix = np.empty((len(tensors), WIDTH))
        host.rows(tensors, host.number(eps), matrix, kernel)
        rows = Tensor.from_numpy(matrix)
    else:
        rows = device_rows(tensors, eps, kernel)
    return rows if out is None else _into(out, rows)


def device_rows(tensors: Sequence[Any], eps: Any, kernel: str | None = None) -> Any:
    """Partials of tensors on an accelerator, on it."""
    choose(kernel, ("operators",))
    return ops.stack([operators.accumulate(tensor, eps) for tensor in tensors])


def _into(out: Any, values: Any) -> Any:
    if tuple(out.shape) != tuple(values.shape) or out.dtype != values.dtype:
        raise ValueError(f"out must be a {values.dtype} {list(values.shape)}, not {out.dtype} {list(out.shape)}")
    out.copy_(values)
    return out


def merge(a: Any, b: Any) -> Any:
    """See `msmon_stats.merge`."""
    total = a + b
    low = mint.minimum(a[..., MIN:MAX], b[..., MIN:MAX])
    high = mint.maximum(a[..., MAX:SUM], b[..., MAX:SUM])
    return ops.concat((total[..., :MIN], low, high, total[..., SUM:]), -1)


def to_host(matrix: Any) -> Matrix:
    """Wait for the device and copy the partials to the host."""
    array: Matrix = matrix.asnumpy()
    return array
