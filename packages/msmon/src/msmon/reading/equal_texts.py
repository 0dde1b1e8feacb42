"""What ranks that hold the same tensor say of it, where they say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from msmon.reading.index import Index, Ints, RowNumbers
from msmon.reading.row_files import KEYS
from msmon.reading.run import Run


def equal_texts(run: Run, index: Index, op: str, steps: Ints) -> npt.NDArray[Any]:
    """The text on which all ranks that have a row agree, of each row at each of these steps.

    Args:
        run: whose ranks are asked.
        index: the rows.
        op: a text column.
        steps: ascending.

    Returns:
        Objects of the shape (steps, rows): texts, empty where two ranks differ or none has any.
    """
    found = np.full((len(steps), len(index.rows)), None, dtype=object)
    for rank in run.ranks.values():
        own = np.full_like(found, None)
        numbering = RowNumbers(index.rows, rank)
        for file in rank.files.get(index.data_type, ()):
            if op not in file.columns or file.last_step < steps[0] or file.first_step > steps[-1]:
                continue
            table = file.load((*KEYS, op))
            if table.num_rows:
                row, step = numbering.of(table), table["step"].to_numpy()
                at = np.searchsorted(steps, step).clip(max=len(steps) - 1)
                wanted = np.flatnonzero((row >= 0) & (steps[at] == step))
                own[at[wanted], row[wanted]] = np.array(table[op].to_pylist(), dtype=object)[wanted]
        known = own != None  # noqa: E711 - of each element
        first = known & (found == None)  # noqa: E711
        found[first] = own[first]
        found[known & (found != own)] = ""
    found[found == None] = ""  # noqa: E711
    return found
