"""Partials by plain numpy: the definition that every other kernel is tested against."""

from __future__ import annotations

import numpy as np

from msmon_stats.fields import COUNT, INFS, MAX, MIN, NANS, SUM, SUMSQ, ZEROS
from msmon_stats.numpy.values import PIECE, Array
from msmon_stats.rows import Matrix, add, clear


def accumulate(values: Array, eps: float, row: Matrix) -> None:
    """Write the partials of a run of real numbers into a row of 8."""
    if len(values) <= PIECE:
        _accumulate_piece(values, eps, row)
        return
    clear(row)
    # Pieces bound the temporaries; numpy adds pairwise within one, and thousands of pieces lose no digits.
    piece = np.empty_like(row)
    for start in range(0, len(values), PIECE):
        _accumulate_piece(values[start : start + PIECE], eps, piece)
        add(row, piece)


def _accumulate_piece(values: Array, eps: float, row: Matrix) -> None:
    clear(row)
    row[COUNT] = len(values)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        nan = np.isnan(wide)
        row[NANS] = np.count_nonzero(nan)
        if row[NANS]:
            wide = wide[~nan]
        if len(wide) == 0:
            return
        row[INFS] = np.count_nonzero(np.isinf(wide))
        row[ZEROS] = np.count_nonzero(np.abs(wide) < eps)
        row[MIN], row[MAX] = wide.min(), wide.max()
        row[SUM], row[SUMSQ] = wide.sum(), np.square(wide).sum()
