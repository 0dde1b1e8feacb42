"""Compares the blocks of two runs and keeps, for each tensor and statistic, the first and the worst difference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from msmon.reading.blocks import Block
from msmon.reading.diff.tolerance import Noise, Tolerance, size_floor
from msmon.reading.index import Index, Ints
from msmon.reading.statistics import Floats

Mask = npt.NDArray[np.bool_]


class Places:
    """For each statistic and row a step, and the values there. All arrays have the shape (statistics, rows)."""

    never = np.iinfo(np.int64).max

    def __init__(self, shape: tuple[int, int]) -> None:
        self.step: Ints = np.full(shape, self.never)
        """Position among the steps; `never` where there is none so far."""
        self.excess = np.zeros(shape)
        self.a, self.b = (np.full(shape, np.nan) for _ in range(2))

    def put(self, chosen: Mask, step: Ints, excess: Floats, a: Block, b: Block) -> None:
        """Where `chosen`, take the values of a block at `step`, the position in it; both (statistics, rows)."""
        stat, row = np.nonzero(chosen)
        step = step[stat, row]
        self.step[stat, row] = step + a.first
        self.excess[stat, row] = excess[stat, step, row]
        self.a[stat, row] = a.values[stat, step, row]
        self.b[stat, row] = b.values[stat, step, row]

    def put_first(self, holds: Mask, excess: Floats, a: Block, b: Block) -> None:
        """Take the first step at which something holds; `holds` and `excess` have the shape of the blocks."""
        self.put(holds.any(axis=1) & (self.step == self.never), holds.argmax(axis=1), excess, a, b)

    def put_worst(self, excess: Floats, a: Block, b: Block) -> None:
        """Take the step of the largest excess above 1."""
        worst = excess.max(axis=1)
        self.put((worst > self.excess) & (worst > 1), excess.argmax(axis=1), excess, a, b)


class Comparison:
    """What differs in one data type on one rank. All arrays have the shape (statistics, rows)."""

    def __init__(self, index: Index, rank: int | None, tolerance: Tolerance, noise: Noise | None = None) -> None:
        shape = (len(index.stats), len(index.rows))
        self.index = index
        self.rank = rank
        """None: all ranks merged."""
        self._tolerance = tolerance
        self._noise = noise
        self.compared = 0
        """Values that both runs have."""
        self.different = 0
        self.first = Places(shape)
        """Beyond the tolerance."""
        self.onset = Places(shape)
        """By anything at all."""
        self.worst = Places(shape)
        self.only: tuple[Ints, Ints] = (np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
        """How many values only A has, and only B."""

    def add(self, a: Block, b: Block) -> Floats:
        """Compare two blocks of the same steps.

        Returns:
            The difference over the tolerance, shape (statistics, steps, rows), 0 where values are equal or missing.
        """
        both = a.present & b.present
        self.compared += int(both.sum())
        for number, alone in enumerate((a.present & ~both, b.present & ~both)):
            self.only[number][:] += alone.sum(axis=1)
        excess = np.zeros(a.values.shape)
        for number in range(len(self.index.stats)):
            x, y = a.values[number], b.values[number]
            unequal = both[number] & (x != y) & ~(np.isnan(x) & np.isnan(y))
            if unequal.any():
                excess[number][unequal] = self._excess(number, a, b, unequal)
        bad = excess > 1
        self.different += int(bad.sum())
        if excess.any():
            self.onset.put_first(excess > 0, excess, a, b)
        if bad.any():
            self.first.put_first(bad, excess, a, b)
            self.worst.put_worst(excess, a, b)
        return excess

    def _excess(self, number: int, a: Block, b: Block, unequal: Mask) -> Floats:
        stats = self.index.stats
        floor = size_floor(stats[number], stats, a)
        noise = None
        if self._noise is not None:
            row = np.nonzero(unequal)[1]
            noise = self._noise.absolute[number, row], self._noise.relative[number, row], self._noise.typical[number]
        return self._tolerance.excess(
            a.values[number][unequal],
            b.values[number][unequal],
            floor if isinstance(floor, float) else floor[unequal],
            noise,
        )


class NoiseMeter:
    """Measures how far a run and its repetition lie apart, per statistic and tensor."""

    def __init__(self, index: Index) -> None:
        self._stats = index.stats
        self._tensors, self._tensor_of = index.tensors()
        shape = (len(index.stats), len(self._tensors))
        self._absolute = np.zeros(shape)
        self._relative = np.zeros(shape)

    def add(self, pairs: Iterator[tuple[Block, Block]]) -> None:
        """Take the blocks of one rank. All ranks and micro-steps count for the tensor."""
        for a, b in pairs:
            for number, stat in enumerate(self._stats):
                x, y = a.values[number], b.values[number]
                known = a.present[number] & b.present[number]
                unequal = known & (x != y) & ~(np.isnan(x) & np.isnan(y))
                with np.errstate(invalid="ignore", divide="ignore"):
                    size = np.fmax(np.maximum(np.abs(x), np.abs(y)), size_floor(stat, self._stats, a))
                    apart = np.abs(x - y)
                    for found, kept in ((apart, self._absolute), (apart / size, self._relative)):
                        # A value that is a number in only one of them can be anything.
                        largest = np.where(unequal, np.where(np.isnan(found), np.inf, found), 0).max(axis=0)
                        np.maximum.at(kept[number], self._tensor_of, largest)

    def noise(self) -> Noise:
        """The noise of each row."""
        typical = np.median(self._relative, axis=1) if len(self._tensors) else np.zeros(len(self._stats))
        return Noise(
            absolute=self._absolute[:, self._tensor_of], relative=self._relative[:, self._tensor_of], typical=typical
        )
