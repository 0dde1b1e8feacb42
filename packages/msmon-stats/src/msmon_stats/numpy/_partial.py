"""Partials of numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msmon_stats._errors import UnsupportedTensorError
from msmon_stats._fields import DEFAULT_EPS, MAX, MIN, WIDTH
from msmon_stats.numpy._reference import accumulate

Matrix = NDArray[np.float64]

_NUMBER_KINDS = "biufc"
# The low-precision types that ml_dtypes, MindSpore and others register with numpy under their own kinds.
_REGISTERED = ("bfloat16", "float8", "float4")


def unsupported_reason(array: Any) -> str | None:
    """See :func:`msmon_stats.unsupported_reason`."""
    dtype = array.dtype
    if dtype.kind in _NUMBER_KINDS or dtype.name.startswith(_REGISTERED):
        return None
    return f"values of dtype {dtype.str} are not numbers"


def partial(array: Any, eps: float = DEFAULT_EPS, *, out: Matrix | None = None, kernel: str | None = None) -> Matrix:
    """See :func:`msmon_stats.partial`."""
    if out is None:
        out = np.empty(WIDTH)
    partial_many([array], eps, out=out[None], kernel=kernel)
    return out


def partial_many(
    arrays: Sequence[Any], eps: float = DEFAULT_EPS, *, out: Matrix | None = None, kernel: str | None = None
) -> Matrix:
    """See :func:`msmon_stats.partial_many`."""
    for array in arrays:
        reason = unsupported_reason(array)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    if out is None:
        out = np.empty((len(arrays), WIDTH))
    for array, row in zip(arrays, out, strict=True):
        accumulate(np.asarray(array), float(eps), row)
    return out


def merge(a: Matrix, b: Matrix) -> Matrix:
    """See :func:`msmon_stats.merge`."""
    result = np.add(a, b)
    np.minimum(a[..., MIN], b[..., MIN], out=result[..., MIN])
    np.maximum(a[..., MAX], b[..., MAX], out=result[..., MAX])
    return result


def to_host(matrix: Matrix) -> Matrix:
    """The matrix itself: numpy arrays lie on the host."""
    return matrix
