"""numpy's operators for the features."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from msmon_stats.features.math import Math


@contextlib.contextmanager
def _quiet(_: Any) -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def _single(array: Any) -> Any:
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _wide(array: Any) -> Any:
    return np.asarray(array, dtype=np.float64)


def _bincount(index: Any, slots: int) -> Any:
    return np.bincount(index, minlength=slots).astype(np.float64)


MATH = Math(
    quiet=_quiet,
    plain=np.asarray,
    single=_single,
    wide=_wide,
    whole=_wide,
    like=lambda array, other: np.asarray(array, dtype=other.dtype),
    exp=np.exp,
    expm1=np.expm1,
    log=np.log,
    sqrt=np.sqrt,
    sign=np.sign,
    isnan=np.isnan,
    where=np.where,
    minus=lambda a, b, c: a - b * c,
    norm=lambda array: np.linalg.norm(_wide(array)),
    sum=lambda array, axis=None: np.sum(array, axis=axis),
    largest=lambda array, axis: np.max(array, axis=axis),
    largest_size=lambda array: np.linalg.norm(array.reshape(-1), np.inf),
    stack=np.stack,
    constant=lambda numbers, _: np.array(numbers, dtype=np.float64),
    arange=lambda stop, _: np.arange(stop),
    searchsorted=lambda edges, array: np.searchsorted(edges, array, side="right"),
    bincount=_bincount,
    chunk=lambda _: 1 << 16,
)
"""See `msmon_stats.features.math.Math`."""
