"""Binned values of both runs and of their differences, for a page."""

from __future__ import annotations

import attrs
import numpy as np

from msmon.reading.binning import Binner, Bins, Bits, make_bins, worst_over
from msmon.reading.blocks import Block
from msmon.reading.diff.pairing import SidedRun, same_layout
from msmon.reading.index import Index
from msmon.reading.statistics import Floats

#: Values kept for one data type: 128 MiB.
_MOST_VALUES = 32 << 20
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
        self._tensors, self._row_tensor = index.tensors()
        self._ranks: list[int | None] = list(a.run.ranks) if same_layout(a.run, b.run) else [None]
        cells = 2 * len(self._ranks) * len(index.stats) * len(self._tensors)
        self.bins = make_bins(index.steps, max(min(_MOST_BINS, _MOST_VALUES // cells), 1))
        self._lines = {(rank, side): self._binner() for rank in self._ranks for side in "ab"}
        self._excess: Bits | None = None
        self._current: tuple[int | None, Binner] | None = None

    def _binner(self, names: tuple[str, ...] | None = None) -> Binner:
        stats = names or self._index.stats
        return Binner(stats, self.bins, self._row_tensor, len(self._tensors))

    def add(self, rank: int | None, a: Block, b: Block, excess: Floats) -> None:
        """Take two blocks and their difference."""
        self._lines[rank, "a"].add(a)
        self._lines[rank, "b"].add(b)
        if self._current is None or self._current[0] != rank:
            self._close()
            # The largest difference is the worst, whatever the statistic.
            self._current = (rank, self._binner(("absmax",) * len(self._index.stats)))
        self._current[1].add(attrs.evolve(a, values=excess, present=a.present & b.present))

    def _close(self) -> None:
        if self._current is not None:
            values = self._current[1].values
            names = ("absmax",) * len(self._index.stats)
            self._excess = values if self._excess is None else worst_over([self._excess, values], names)

    def result(self) -> Gathered:
        """Everything that was taken."""
        self._close()
        assert self._excess is not None
        lines = np.stack([self._lines[rank, side].values for rank in self._ranks for side in "ab"])
        names = [
            f"{side.upper()}{f' rank {rank}' if len(self._ranks) > 1 else ''}" for rank in self._ranks for side in "ab"
        ]
        return Gathered(index=self._index, bins=self.bins, line_names=names, lines=lines, excess=self._excess)
