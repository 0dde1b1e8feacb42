"""The stored partials of a rank as dense arrays, beside the blocks of its digits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from msmon.partials import Partials, Tensors
from msmon.reading.index import Index, Ints, Rename, RowNumbers
from msmon.reading.partials_files import key_columns, read_partials
from msmon.reading.row_files import Note
from msmon.reading.run import RankRun
from msmon.reading.statistics import Floats
from msmon_stats import FIELDS

#: The partials of no element.
NOTHING = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 0.0])


class StoredRows:
    """What a rank stored of the rows of an index.

    Args:
        rows: numbers of the rows that are wanted.
        rename: as given to `build_index`.
        note: told of damaged files, whose rows are then missing here.
    """

    def __init__(self, rank: RankRun, index: Index, rows: Ints, *, rename: Rename, note: Note) -> None:
        self._reader = rank.partials
        self._data_type = index.data_type
        self._count = len(rows)
        self._position = np.full(len(index.rows) + 1, -1)
        self._position[rows] = np.arange(len(rows))
        self._numbering = RowNumbers(index.rows, rank, rename=rename)
        self._note = note
        self._tensors: Tensors | None = None
        self._found: tuple[list[int], Ints] = [], np.zeros(0, dtype=np.int64)

    def of(self, steps: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The partials at these steps, shape (steps, wanted rows, 8), and which of them there are."""
        partials = np.empty((len(steps), self._count, len(FIELDS)))
        partials[:] = NOTHING
        there = np.zeros(partials.shape[:2], dtype=np.bool_)
        for at, step in enumerate(steps.tolist()):
            stored = read_partials(self._reader, step, self._note) if self._reader else None
            if stored is not None:
                taken, positions = self._places(stored)
                partials[at, positions] = stored.matrix[taken]
                there[at, positions] = True
        return partials, there

    def _places(self, stored: Partials) -> tuple[list[int], Ints]:
        """Which rows of the step are wanted, and where each goes. The same at most steps."""
        if stored.tensors is not self._tensors:
            self._tensors = stored.tensors
            own, keys = key_columns(stored, self._data_type)
            positions = self._position[self._numbering.of(pa.table(keys))] if own else np.zeros(0, dtype=np.int64)
            known = positions >= 0
            self._found = [row for row, wanted in zip(own, known, strict=True) if wanted], positions[known]
        return self._found
