"""A few steps of all data types and ranks at a time, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from msmon.reading.blocks import Block, read_blocks
from msmon.reading.index import NO_MICRO_STEP, Index, Ints, RowKey, TensorKey
from msmon.reading.run import Run
from msmon.reading.statistics import Floats
from msmon.reading.text_columns import SHAPE
from msmon_io import FINGERPRINT

Mask = npt.NDArray[np.bool_]

#: Values of all ranks and data types together: 192 MiB, and as much again for what is made of them.
WINDOW_CELLS = 24 << 20

#: Statistics that are sums, and so may differ in their last bits with the order of summation.
SUMS = ("mean", "norm", "std", "rms")


@attrs.frozen(kw_only=True, eq=False)
class Observed:
    """One data type in a window."""

    index: Index
    blocks: tuple[Block, ...]
    """One for each rank of the run, in their order."""

    def has(self, stat: str) -> bool:
        """Whether the run has this column."""
        return stat in self.index.stats

    def values(self, at: int, stat: str) -> Floats:
        """The values of a statistic on one rank, shape (steps, rows)."""
        return np.asarray(self.blocks[at].values[self.index.stats.index(stat)])

    def present(self, at: int) -> Mask:
        """Where a rank has a row, shape (steps, rows)."""
        numbers = self.numbers()
        return np.asarray(self.blocks[at].present[numbers[0] if numbers else 0])

    def numbers(self) -> list[int]:
        """The columns that hold statistics."""
        return [at for at, stat in enumerate(self.index.stats) if stat not in (FINGERPRINT, SHAPE)]

    def fingerprints(self, at: int) -> tuple[npt.NDArray[np.uint64], Mask] | None:
        """The fingerprints on one rank and where there are any, both (steps, rows); None: there are none."""
        if FINGERPRINT not in self.index.stats:
            return None
        number = self.index.stats.index(FINGERPRINT)
        block = self.blocks[at]
        return block.values[number].view(np.uint64), block.present[number]


@attrs.frozen(kw_only=True, eq=False)
class Window:
    """Consecutive recorded steps."""

    steps: Ints
    types: Mapping[str, Observed]


def verifiable(run: Run, index: Index) -> Index:
    """The index with the columns that a verification reads: the statistics, and fingerprints and shapes as numbers."""
    columns = {
        column for rank in run.ranks.values() for f in rank.files.get(index.data_type, ()) for column in f.columns
    }
    numbers = [stat for stat in index.stats if stat not in (FINGERPRINT, SHAPE)]
    return attrs.evolve(index, stats=(*numbers, *(one for one in (FINGERPRINT, SHAPE) if one in columns)))


def windows(run: Run, indices: Mapping[str, Index], *, cells: int = WINDOW_CELLS) -> Iterator[Window]:
    """The run from its first step to its last.

    Args:
        indices: data type -> what is read of it; all with the same steps.
    """
    if not indices:
        return
    steps = next(iter(indices.values())).steps
    width = sum(len(index.rows) * len(index.stats) for index in indices.values()) * len(run.ranks)
    length = max(cells // max(width, 1), 1)
    reading = {
        data_type: [
            read_blocks(rank, index, cells=max(length * len(index.rows) * len(index.stats), 1))
            for rank in run.ranks.values()
        ]
        for data_type, index in indices.items()
    }
    for first in range(0, len(steps), length):
        types = {
            data_type: Observed(index=indices[data_type], blocks=tuple(next(one) for one in ranks))
            for data_type, ranks in reading.items()
        }
        yield Window(steps=steps[first : first + length], types=types)


def rows_by_tensor(index: Index) -> dict[TensorKey, list[int]]:
    """The rows of each tensor, by micro-step where there are several."""
    found: dict[TensorKey, list[tuple[int, int]]] = {}
    for row, number in index.rows.items():
        found.setdefault(row.tensor, []).append((row.micro_step, number))
    return {tensor: [number for _, number in sorted(rows)] for tensor, rows in found.items()}


def row_keys(index: Index) -> list[RowKey]:
    """The rows by their number."""
    return list(index.rows)


def micro_step_of(row: RowKey) -> int | None:
    """None where a tensor exists once a step."""
    return None if row.micro_step == NO_MICRO_STEP else row.micro_step
