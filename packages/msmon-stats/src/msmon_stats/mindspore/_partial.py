"""Partials of MindSpore tensors: checks, choice of kernel, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, mint, ops

from msmon_stats import numpy as host
from msmon_stats._errors import UnsupportedTensorError
from msmon_stats._fields import DEFAULT_EPS, MAX, MIN, SUM
from msmon_stats.mindspore import _operators
from msmon_stats.mindspore._values import as_array, on_host, unsupported_reason


def partial(tensor: Any, eps: Any = DEFAULT_EPS, *, out: Any = None, kernel: str | None = None) -> Any:
    """See :func:`msmon_stats.partial`."""
    row = partial_many([tensor], eps, kernel=kernel)[0]
    if out is None:
        return row
    out.copy_(row)
    return out


def partial_many(tensors: Sequence[Any], eps: Any = DEFAULT_EPS, *, out: Any = None, kernel: str | None = None) -> Any:
    """See :func:`msmon_stats.partial_many`."""
    for tensor in tensors:
        reason = unsupported_reason(tensor)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    if on_host(tensors[0]):
        rows = Tensor.from_numpy(host_rows(tensors, eps, kernel))
    else:
        rows = ops.stack([_operators.accumulate(tensor, eps) for tensor in tensors])
    if out is None:
        return rows
    out.copy_(rows)
    return out


def host_rows(tensors: Sequence[Any], eps: Any, kernel: str | None = None) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Partials of tensors on the host, by the kernels for numpy arrays."""
    number = float(as_array(eps)) if isinstance(eps, Tensor) else float(eps)
    return host.partial_many([as_array(tensor) for tensor in tensors], number, kernel=kernel)


def merge(a: Any, b: Any) -> Any:
    """See :func:`msmon_stats.merge`."""
    total = a + b
    return ops.concat(
        (
            total[..., :MIN],
            mint.minimum(a[..., MIN:MAX], b[..., MIN:MAX]),
            mint.maximum(a[..., MAX:SUM], b[..., MAX:SUM]),
            total[..., SUM:],
        ),
        -1,
    )


def to_host(matrix: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Wait for the device and copy the partials to the host."""
    return matrix.asnumpy()  # type: ignore[no-any-return]
