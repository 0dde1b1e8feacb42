"""Statistics in float32 numbers: what a device without float64 leaves, and how the host makes partials of it.

A tensor's values lie in rows of `ROW` values; what is free in its last row is NaN. The device leaves nine float32
numbers of each row, and the host merges rows in float64. So the precision of the device costs only what a row's own
sums lose, and these are made of differences from the row's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from msmon_stats.fields import COUNT, INFS, MAX, MIN, NANS, SUM, SUMSQ, ZEROS
from msmon_stats.fingerprint import WORD, element_powers, power, powers
from msmon_stats.rows import Matrix, add_zeros, repeat, unscale

ROW = 2048
STEP = 32
"""Values that are added at a time: a row's sums are sums of sums, so that they are right to 1e-6 also on a device that
adds one value after the other."""
PARTS = ROW // STEP // STEP
"""What is left of a row then; the host adds it up."""

NUMBERS = ("zeros", "infs", "known", "low", "high", "scale")
"""What is left of a row, in this order, each for all rows that are read together. `known` counts what is no NaN; NaN is
left out of all that follows. `low` and `high` are +inf and -inf where all is NaN. `scale` is a power of two near the
largest absolute value, so that no square overflows or vanishes; where the memory comes from it is `LEAST_SCALE`."""
SUMS = ("squares", "rest", "total")
"""Behind them, of each row in `PARTS`: the sums of `y * y`; of `y`, the difference of `x / scale` from the row's mean
as far as float32 knows that; and of `x / scale`. So the spread of values far from 0 survives."""
PER_ROW = len(NUMBERS) + len(SUMS) * PARTS

LEAST_SCALE = 2.0**-126
"""The smallest normal number."""

EXPONENT = 0x7F800000
"""The bits of a float32 number that make it a power of two."""

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

    handles: list[int] = field(factory=list)
    rows: list[int] = field(factory=list)
    values: list[int] = field(factory=list)

    def add(self, handle: int, values: int) -> int:
        """So many values of a tensor lie in the next rows; how many rows these are."""
        rows = -(-values // ROW)
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


@frozen(kw_only=True, eq=False)
class WordRows:
    """Sums over the words of rows, for fingerprints: a number of 8 bytes each, which takes the room of two."""

    place: int
    """Of the first of the numbers."""
    runs: Sequence[tuple[int, int]]
    """Handle and number of values of each tensor, in order; each begins at a row."""
    before: Sequence[int]
    """Words of the tensor before its rows."""
    itemsize: int
    """Bytes of a value."""
    padding: int
    """The bits of what is free in a tensor's last row."""

    def add_to(self, contents: dict[int, int], carried: Carried) -> None:
        """To the sums over the words of tensors, by handle."""
        start, step = self.place, ROW * self.itemsize // WORD
        for (handle, values), before in zip(self.runs, self.before, strict=True):
            rows = -(-values // ROW)
            sums = carried[start : start + 2 * rows].view(np.uint64)
            total = int((sums * powers(rows, step)).sum())
            if self.padding and values % ROW:
                total -= self.padding * _padded(self.itemsize, values % ROW) * power((rows - 1) * step)
            contents[handle] = (contents[handle] + total * power(before)) % (1 << 64)
            start += 2 * rows


@cache
def _padded(itemsize: int, values: int) -> int:
    """By what the bits are multiplied of all that is free in a row behind so many values."""
    return int(element_powers(ROW, itemsize)[values:].sum())


def merge(plan: Plan, numbers: Carried, out: Matrix) -> None:
    """Add the rows of a plan to the partials of their tensors.

    Args:
        plan: what lies in the rows.
        numbers: float32 `[PER_ROW * rows]`: `NUMBERS` `[6, rows]` and `SUMS` `[3, rows, PARTS]`.
        out: float64 `[n, 8]`; the index is the handle.
    """
    count = plan.row_count
    split = len(NUMBERS) * count
    single = numbers[:split].reshape(-1, count).astype(np.float64)
    zeros, infs, known, low, high, scale = single
    squares, rest, total = numbers[split:].reshape(len(SUMS), count, PARTS).sum(-1, dtype=np.float64)
    rows, values, handles = (np.array(one, np.intp) for one in (plan.rows, plan.values, plan.handles))
    first = np.cumsum(rows) - rows
    nans = ROW - known
    nans[first + rows - 1] -= rows * ROW - values
    with np.errstate(all="ignore"):
        # What the values scatter around their mean, and the square of that.
        scatter = np.maximum(squares - rest * rest / known, 0.0) * scale * scale
        total = np.where(known > 0, total * scale, 0.0)
        squares = np.where(known > 0, scatter + total * total / known, 0.0)
        infinite = np.where(high < np.inf, -np.inf, np.where(low > -np.inf, np.inf, np.nan))
        total = np.where(infs > 0, infinite, total)
        squares = np.where(infs > 0, np.inf, squares)
        np.add.at(out[:, COUNT], handles, values)
        for column, part in ((NANS, nans), (INFS, infs), (ZEROS, zeros), (SUM, total), (SUMSQ, squares)):
            np.add.at(out[:, column], handles, np.add.reduceat(part, first))
        np.minimum.at(out[:, MIN], handles, np.minimum.reduceat(low, first))
        np.maximum.at(out[:, MAX], handles, np.maximum.reduceat(high, first))
