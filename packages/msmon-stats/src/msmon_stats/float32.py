"""Statistics in float32 numbers: what a device without float64 leaves, and how the host makes partials of it.

A tensor's values lie in rows of `ROW` values, or of `LONG_ROW`; what is free in its last row is NaN. The device leaves
nine float32 numbers of each row, and the host merges rows in float64. So nothing is lost to the precision of the
device but what a row's own sums lose, and these are made of values that are near 0 and near 1: every value has `centre`
subtracted and is divided by `scale`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from msmon_stats.fields import COUNT, INFS, MAX, MIN, NANS, SUM, SUMSQ, ZEROS
from msmon_stats.rows import Matrix, add_zeros, repeat, unscale

ROW = 2048
LONG_ROW = 32768
STEP = 32
"""Values that are added at a time: a row's sum is one of sums of sums, so that it is right to 1e-6 also on a device
that adds one value after the other. `ROW` and `LONG_ROW` are made of two and three such steps."""

NUMBERS = ("zeros", "infs", "nans", "low", "high", "centre", "scale", "total", "squares")
"""What is left of a row. `low` and `high` are +inf and -inf where all is NaN; `centre` is the value between them that
is next to 0, so that the spread of values far from 0 survives; `scale` is a power of two, so that no square overflows
or vanishes. NaN is left out of `total` and `squares`, the sums of `x' = (x - centre) / scale` and of `x' * x'`."""

_ZEROS, _INFS, _NANS, _LOW, _HIGH, _CENTRE, _SCALE, _TOTAL, _SQUARES = range(len(NUMBERS))

WORK_BYTES = 32 << 20
"""Memory that a device's operators work in."""

Carried = NDArray[np.float32]
"""All numbers that a step's copy has brought to the host."""

Number = Callable[[Carried], float]
"""A number that may be one of those that a copy brings."""


def limit(eps: float) -> float:
    """The smallest float32 that is not below `eps`: for a float32 x, `x < eps` then means the same.

    >>> limit(0.1) >= 0.1, limit(0.5), limit(1e300)
    (True, 0.5, inf)
    """
    with np.errstate(over="ignore"):
        near = np.float32(eps)
    return float(np.nextafter(near, np.float32(np.inf)) if float(near) < eps else near)


@define(eq=False)
class Plan:
    """Which tensor lies in which of the rows that were read together, in their order."""

    width: int
    """Values of a row."""
    handles: list[int] = field(factory=list)
    rows: list[int] = field(factory=list)
    values: list[int] = field(factory=list)

    def add(self, handle: int, values: int) -> int:
        """So many values of a tensor lie in the next rows; how many rows these are."""
        rows = -(-values // self.width)
        self.handles.append(handle)
        self.rows.append(rows)
        self.values.append(values)
        return rows

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return sum(self.rows)


@frozen(kw_only=True, eq=False)
class Correction:
    """What the rows of a tensor do not say."""

    times: int = 1
    """How often each stored value occurs."""
    implicit: int = 0
    """Zeros beside them that are not stored."""
    eps: Number
    scale: Number | None = None
    """By what the values were multiplied."""
    extremes: Callable[[Carried], tuple[int, int]] | None = None
    """The least and the largest of whole numbers that float32 rounds."""

    def apply(self, row: Matrix, carried: Carried) -> None:
        """To the merged row of the tensor."""
        if self.extremes is not None:
            row[MIN], row[MAX] = self.extremes(carried)
        repeat(row, self.times)
        if self.implicit:
            add_zeros(row, self.implicit, self.eps(carried))
        if self.scale is not None:
            unscale(row, self.scale(carried))


def merge(plan: Plan, numbers: Carried, out: Matrix) -> None:
    """Add the rows of a plan to the partials of their tensors.

    Args:
        plan: what lies in the rows.
        numbers: float32 `[9, rows]`, in the order of `NUMBERS`.
        out: float64 `[n, 8]`; the index is the handle.
    """
    n = numbers.astype(np.float64)
    rows, values, handles = (np.array(one, np.intp) for one in (plan.rows, plan.values, plan.handles))
    first = np.cumsum(rows) - rows
    padding = np.zeros(n.shape[1])
    padding[first + rows - 1] = rows * plan.width - values
    known = plan.width - n[_NANS]
    with np.errstate(all="ignore"):
        some = known > 0
        centre, scale = np.where(some, n[_CENTRE], 0.0), np.where(some, n[_SCALE], 1.0)
        total, squares = n[_TOTAL] * scale, n[_SQUARES] * scale * scale
        squares += 2.0 * centre * total + known * centre * centre
        total += known * centre
        infinite = np.where(n[_HIGH] < np.inf, -np.inf, np.where(n[_LOW] > -np.inf, np.inf, np.nan))
        total = np.where(n[_INFS] > 0, infinite, total)
        squares = np.where(n[_INFS] > 0, np.inf, squares)
        summed = {
            NANS: n[_NANS] - padding,
            INFS: n[_INFS],
            ZEROS: n[_ZEROS],
            SUM: total,
            SUMSQ: squares,
        }
        np.add.at(out[:, COUNT], handles, values)
        for column, numbers_of_rows in summed.items():
            np.add.at(out[:, column], handles, np.add.reduceat(numbers_of_rows, first))
        np.minimum.at(out[:, MIN], handles, np.minimum.reduceat(n[_LOW], first))
        np.maximum.at(out[:, MAX], handles, np.maximum.reduceat(n[_HIGH], first))
