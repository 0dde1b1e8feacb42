"""Binned values of both runs and of their differences, for a page."""

from __future__ import annotations

import attrs
import numpy as np

from msmon.reading.binning import Binner, Bins, Bits, make_bins, worst_over
from msmon.reading.blocks import Block
from msmon.reading.diff.pairing import SidedRun, same_layout
from msmon.reading.index import Index
from msmon.reading.statistics import Floats

#: Values kept for one data type: 192 MiB.
_MOST_VALUES = 48 << 20
_MOST_BINS = 512


@attrs.frozen(kw_only=True, eq=False)
class Gathered:
    """One data type of both runs."""

    index: Index
    bins: Bins
    line_names: list[str]
    lines: Bits
    """(lines, statistics, tensors, bins): run A then run B, of the first rank, then of the next."""
    excess: Bits
    """(statistics, tensors, bins): the worst difference over the tolerance, of all ranks."""


class Gatherer:
    """Takes the blocks of both runs while they are compared."""

    def __init__(self, a: SidedRun, b: SidedRun, index: Index) -> None:
        self._index = index
        tensors, row_tensor = index.tensors()
        self._ranks: list[int | None] = list(a.run.ranks) if same_layout(a.run, b.run) else [None]
        cells = 3 * len(self._ranks) * len(index.stats) * len(tensors)
        self.bins = make_bins(index.steps, max(min(_MOST_BINS, _MOST_VALUES // cells), 1))
        # The largest difference is the worst, whatever the statistic.
        self._largest = ("absmax",) * len(index.stats)
        self._binners = {
            (rank, what): Binner(stats, self.bins, row_tensor, len(tensors))
            for rank in self._ranks
            for what, stats in (("a", index.stats), ("b", index.stats), ("excess", self._largest))
        }

    def add(self, rank: int | None, a: Block, b: Block, excess: Floats) -> None:
        """Take two blocks and their difference."""
        self._binners[rank, "a"].add(a)
        self._binners[rank, "b"].add(b)
        self._binners[rank, "excess"].add(attrs.evolve(a, values=excess, present=a.present & b.present))

    def result(self) -> Gathered:
        """Everything that was taken."""
        lines = np.stack([self._binners[rank, side].values for rank in self._ranks for side in "ab"])
        excess = worst_over([self._binners[rank, "excess"].values for rank in self._ranks], self._largest)
        names = [
            f"{side.upper()}{f' rank {rank}' if len(self._ranks) > 1 else ''}" for rank in self._ranks for side in "ab"
        ]
        return Gathered(index=self._index, bins=self.bins, line_names=names, lines=lines, excess=excess)
