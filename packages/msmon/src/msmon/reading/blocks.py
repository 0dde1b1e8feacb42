"""The values of one data type on one rank, as dense arrays of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from msmon.reading.index import Index, Ints, Rename, RowNumbers
from msmon.reading.row_files import KEYS, RowFile
from msmon.reading.run import RankRun
from msmon.reading.statistics import Floats
from msmon.reading.text_columns import numbers_of

#: 32 MiB of float64: small enough that a few temporaries of this size do no harm.
BLOCK_CELLS = 4 << 20


@attrs.frozen(kw_only=True, eq=False)
class Block:
    """Consecutive steps of one data type on one rank."""

    first: int
    """The position of the first step in the index."""
    values: Floats
    """Shape (statistics, steps, rows); NaN where there is no value."""
    present: npt.NDArray[np.bool_]
    """The same shape: is there a value? (A value may be NaN.)"""


def read_blocks(
    rank: RankRun,
    index: Index,
    *,
    rename: Rename = lambda key: key,
    multiple: int = 1,
    cells: int = BLOCK_CELLS,
) -> Iterator[Block]:
    """The values in the order of the steps, all steps of the index.

    A step that was written twice (a training that went on from an older checkpoint) has the later values.

    Args:
        rename: as given to `build_index`.
        multiple: each block but the last has a multiple of so many steps.
        cells: how many values a block holds at most, if `multiple` allows.
    """
    numbering = RowNumbers(index.rows, rank, rename=rename)
    rows = len(index.rows)
    length = max(cells // max(rows * len(index.stats), 1) // multiple, 1) * multiple
    # The last table is kept: a file may reach over the end of a block.
    load = lru_cache(1)(lambda file: file.load((*KEYS, *index.stats)))
    for first in range(0, len(index.steps), length):
        # Not kept here while the block is looked at: of many ranks side by side this would be many blocks.
        yield _block(rank.files.get(index.data_type, ()), index, first, length, load, numbering)


def _block(
    files: Sequence[RowFile], index: Index, first: int, length: int, load: Callable[..., Any], numbering: RowNumbers
) -> Block:
    steps = index.steps[first : first + length]
    shape = (len(index.stats), len(steps), len(index.rows))
    block = Block(first=first, values=np.full(shape, np.nan), present=np.zeros(shape, dtype=np.bool_))
    for file in files:
        if file.first_step <= steps[-1] and file.last_step >= steps[0]:
            _fill(block, load(file), steps, index.stats, numbering)
    if "nans" in index.stats:
        # The older tool writes a row of nan for a tensor that does not exist; a count is never NaN.
        block.present[:, np.isnan(block.values[index.stats.index("nans")])] = False
    return block


def _fill(block: Block, table: Any, steps: Ints, stats: Sequence[str], numbering: RowNumbers) -> None:
    if not table.num_rows:
        return
    step = table["step"].to_numpy()
    at = np.minimum(np.searchsorted(steps, step), len(steps) - 1)
    rows = numbering.of(table)
    wanted = (steps[at] == step) & (rows >= 0)
    chosen = slice(None) if wanted.all() else wanted
    cell = (at * block.values.shape[2] + rows)[chosen]
    for number, stat in enumerate(stats):
        if stat not in table.column_names:
            continue
        values, there = numbers_of(table[stat], stat)
        block.values[number].reshape(-1)[cell] = values[chosen]
        block.present[number].reshape(-1)[cell] = there if there is True else there[chosen]
