"""Corrections of rows of partials on the host. They leave the columns of a fingerprint alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msmon_stats.fields import COUNT, INFS, MAX, MIN, NANS, SUM, SUMSQ, WIDTH, ZEROS

Matrix = NDArray[np.float64]

COUNTED = [COUNT, NANS, INFS, ZEROS, SUM, SUMSQ]
"""The fields that add up; the other two are compared."""


def clear(row: Matrix) -> None:
    """The partials of an empty tensor."""
    row[:WIDTH] = 0.0
    row[MIN], row[MAX] = np.inf, -np.inf


def add(row: Matrix, part: Matrix) -> None:
    """Merge a part into a row."""
    low, high = min(row[MIN], part[MIN]), max(row[MAX], part[MAX])
    with np.errstate(all="ignore"):
        row[:WIDTH] += part[:WIDTH]
    row[MIN], row[MAX] = low, high


def repeat(row: Matrix, times: int) -> None:
    """Every element occurs so many times."""
    if times != 1:
        row[COUNTED] *= times


def add_zeros(row: Matrix, count: int, eps: float) -> None:
    """Add elements that are not stored because they are 0."""
    if count:
        row[COUNT] += count
        row[ZEROS] += count if eps > 0 else 0
        row[MIN], row[MAX] = min(row[MIN], 0.0), max(row[MAX], 0.0)


def unscale(rows: Matrix, scale: Any) -> None:
    """From the rows of values that were multiplied by a positive number to those of the values."""
    with np.errstate(all="ignore"):
        rows[..., MIN:WIDTH] /= scale
        rows[..., SUMSQ] /= scale
