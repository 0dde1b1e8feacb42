"""Are two tensors the same? By fingerprint where both have one, else by all recorded statistics."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from msmon.reading.index import Ints
from msmon.reading.statistics import Floats
from msmon.verifying.windows import SUMS, Mask, Observed
from msmon_io import FINGERPRINT

#: Sums of the same float32 values in another order differ by less, relative to their size. One changed bit of one of
#: ten million elements is more.
ORDER_OF_SUMMATION = 1e-14

_SIZES = ("norm", "rms", "absmax", "min", "max")


class Equality:
    """Counts what was compared, and by what."""

    def __init__(self) -> None:
        self.by_fingerprint = 0
        self.by_statistics = 0

    @property
    def comparisons(self) -> int:
        """Pairs of tensors."""
        return self.by_fingerprint + self.by_statistics

    @property
    def how(self) -> str:
        """What the comparisons were of."""
        parts = []
        if self.by_fingerprint:
            parts.append("fingerprints (every bit)")
        if self.by_statistics:
            parts.append("all recorded statistics")
        return " and ".join(parts)

    def unequal(
        self,
        one: Observed,
        at: int,
        other: Observed,
        other_at: int,
        rows: Ints | slice = slice(None),
        other_rows: Ints | slice | None = None,
    ) -> Mask:
        """Where two ranks' tensors differ, shape (steps, rows); False where one of them has no row.

        Args:
            one, other: the same data type or two with the same statistics.
            at, other_at: positions of the ranks.
            rows, other_rows: rows of each; of `other` the same as of `one`, if not given.
        """
        other_rows = rows if other_rows is None else other_rows
        both = one.present(at)[:, rows] & other.present(other_at)[:, other_rows]
        printed = np.zeros(both.shape, np.bool_)
        differs = np.zeros(both.shape, np.bool_)
        prints, others = one.fingerprints(at), other.fingerprints(other_at)
        if prints is not None and others is not None:
            printed = prints[1][:, rows] & others[1][:, other_rows] & both
            differs |= printed & (prints[0][:, rows] != others[0][:, other_rows])
        self.by_fingerprint += int(printed.sum())
        rest = both & ~printed
        count = int(rest.sum())
        if count:
            self.by_statistics += count
            differs |= self._by_statistics(one, at, other, other_at, rows, other_rows, rest)
        return differs

    @staticmethod
    def _by_statistics(
        one: Observed,
        at: int,
        other: Observed,
        other_at: int,
        rows: Ints | slice,
        other_rows: Ints | slice,
        where: Mask,
    ) -> Mask:
        stats = common_statistics(one, other)
        suspect = np.zeros(where.shape, np.bool_)
        for stat in stats:
            suspect |= one.values(at, stat)[:, rows] != other.values(other_at, stat)[:, other_rows]
        suspect &= where
        found = np.nonzero(suspect)
        if not len(found[0]):
            return suspect
        a = {stat: one.values(at, stat)[:, rows][found] for stat in stats}
        b = {stat: other.values(other_at, stat)[:, other_rows][found] for stat in stats}
        suspect[found] = different(a, b)
        return suspect


def common_statistics(one: Observed, other: Observed) -> list[str]:
    """The statistics that both have."""
    return [one.index.stats[at] for at in one.numbers() if one.index.stats[at] in other.index.stats]


def different(a: dict[str, Floats], b: dict[str, Floats]) -> Mask:
    """Which of some tensors differ, by their statistics (statistic -> values, all 1-D)."""
    size = largest(a[stat] for stat in a if stat in _SIZES)
    found = np.zeros(len(next(iter(a.values()), ())), np.bool_)
    with np.errstate(invalid="ignore"):
        for stat, x in a.items():
            y = b[stat]
            unequal = (x != y) & ~(np.isnan(x) & np.isnan(y))
            if stat in SUMS:
                scale = np.maximum(np.abs(x), np.abs(y))
                scale = np.maximum(scale, size) if stat == "mean" else scale
                unequal &= ~(np.abs(x - y) <= ORDER_OF_SUMMATION * scale)
            found |= unequal
    return found


def largest(values: Iterable[Floats]) -> Floats | float:
    """The largest magnitude of several statistics of each tensor; 0 where there are none."""
    found: Floats | float = 0.0
    for one in values:
        found = np.fmax(found, np.abs(one))
    return found


def value_texts(observed: Observed, at: int, step: int, row: int, stats: Iterable[str]) -> dict[str, str]:
    """Statistics of one tensor as text, all their digits; a fingerprint as 16 hexadecimal digits."""
    found = {}
    for stat in stats:
        if stat == FINGERPRINT:
            prints = observed.fingerprints(at)
            if prints is not None and prints[1][step, row]:
                found[stat] = f"{int(prints[0][step, row]):016x}"
        else:
            found[stat] = repr(float(observed.values(at, stat)[step, row]))
    return found
