"""Values of whole tensors from what each rank has of them: stored partials where there are some, else digits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from msmon.reading.blocks import BLOCK_CELLS, Block, read_blocks
from msmon.reading.index import Index, Ints, Rename, TensorKey
from msmon.reading.run import RankRun, Run
from msmon.reading.statistics import Floats
from msmon.reading.stored_rows import NOTHING, StoredRows
from msmon.reading.tensor_entries import STATE, parameter_name
from msmon.reading.written_digits import mergeable, to_partials
from msmon_hooks import DATA_TYPES
from msmon_stats import FIELDS, OPS, finalize, merge

Mask = npt.NDArray[np.bool_]

#: Data types of which ranks share the values: split by batch, by features, or repeated.
ACTIVATIONS = frozenset(name for name, one in DATA_TYPES.items() if one.phase == "forward")
#: Data types whose values are each rank's own: with other ranks they are other values.
OWN = frozenset(name for name, one in DATA_TYPES.items() if one.in_micro_steps) - ACTIVATIONS
#: Statistics of which the one of the whole follows from those of any shares of an activation.
EXTREMES: dict[str, Any] = {"min": np.minimum, "max": np.maximum, "absmax": np.maximum}


@attrs.frozen(kw_only=True, eq=False)
class WholeBlock(Block):
    """A block of whole tensors. The further arrays have the shape (steps, rows)."""

    complete: Mask
    """Are there values of the whole tensor?"""
    held: Floats
    """Elements of the shards that were there; 0 where ranks hold the whole tensor."""
    from_digits: Mask
    """Was a shard read from digits?"""


def exact_blocks(
    run: Run, rank: RankRun, index: Index, *, rename: Rename = lambda key: key, multiple: int = 1
) -> Iterator[Block]:
    """The values of one rank as `read_blocks` gives them, but exact where there are stored partials."""
    stored = StoredRows(rank, index, np.arange(len(index.rows)), rename=rename, note=run.note)
    numbers, ops = _derived(index)
    for block in read_blocks(rank, index, rename=rename, multiple=multiple, cells=_cells(index)):
        partials, there = stored.of(_steps(index, block))
        if there.any():
            for number, values in zip(numbers, finalize(partials[there], ops).T, strict=True):
                block.values[number][there] = values
                block.present[number][there] = True
        yield block


def whole_blocks(
    run: Run, index: Index, *, rename: Rename = lambda key: key, multiple: int = 1
) -> Iterator[WholeBlock]:
    """The values of whole tensors, from all ranks of a run.

    Where the ranks hold shards, the statistics of tensors are those of all shards together; `std` needs `mean` beside
    it where a shard is read from digits. Another statistic (of attention, say) is dropped, and so is a tensor at a step
    at which a shard is missing. Where the ranks hold the whole tensor, or `run.json` does not say, the first rank that
    has a value gives it; but of activations min, max and absmax are those over all ranks.

    Args:
        rename, multiple: as for `read_blocks`.
    """
    shard, numel, whole = _shards(run, index, rename)
    sharded = np.flatnonzero(~np.isnan(whole))
    ranks = list(run.ranks.values())
    blocks = [read_blocks(rank, index, rename=rename, multiple=multiple, cells=_cells(index)) for rank in ranks]
    stored = [StoredRows(rank, index, sharded, rename=rename, note=run.note) for rank in ranks]
    for block in blocks[0]:
        joined = _Joined(index, sharded, block)
        for number in range(len(ranks)):
            # One rank's block at a time is in memory.
            block = next(blocks[number]) if number else block
            joined.repeat(block)
            if len(sharded):
                joined.join(block, *stored[number].of(_steps(index, block)), shard[number], numel[number])
        yield joined.result(whole)


class _Joined:
    """Whole tensors, of which more and more ranks are known."""

    def __init__(self, index: Index, sharded: Ints, block: Block) -> None:
        self._index = index
        self._numbers, self._ops = _derived(index)
        self._sharded = sharded
        shape = block.values.shape[1:]
        self._whole = WholeBlock(
            first=block.first,
            values=np.full(block.values.shape, np.nan),
            present=np.zeros(block.values.shape, dtype=np.bool_),
            complete=np.zeros(shape, dtype=np.bool_),
            held=np.zeros(shape),
            from_digits=np.zeros(shape, dtype=np.bool_),
        )
        self._partials = np.broadcast_to(NOTHING, (shape[0], len(sharded), len(FIELDS)))
        self._taken: list[tuple[Ints, Mask]] = []

    def repeat(self, block: Block) -> None:
        """Take the values as those of whole tensors."""
        for number, stat in enumerate(self._index.stats):
            values, present = self._whole.values[number], self._whole.present[number]
            worse = EXTREMES.get(stat) if self._index.data_type in ACTIVATIONS else None
            if worse is not None:
                both = present & block.present[number]
                values[both] = worse(values[both], block.values[number][both])
            new = block.present[number] & ~present
            values[new] = block.values[number][new]
            present |= new

    def join(self, block: Block, partials: Floats, stored: Mask, shard: Ints, numel: Floats) -> None:
        """Take the shards of a rank: their digits, their partials (and where there are some), and `_shards`."""
        rows = self._sharded
        shard, numel = shard[rows], numel[rows]
        digits = {op: block.values[at][:, rows] for op, at in zip(self._ops, self._numbers, strict=True)}
        here = stored.copy()
        if digits:
            here |= np.logical_and.reduce([block.present[at][:, rows] for at in self._numbers])
        here &= numel > 0
        if self._index.data_type == STATE:
            # What has no number for each element (a factor, a preconditioner) is the rank's own. Digits do not tell.
            here &= stored & (partials[..., 0] == numel)
        for other, taken in self._taken:
            replica = (other == shard) & (shard >= 0)
            if replica.any():
                here[:, replica] &= ~taken[:, replica]
        self._taken.append((shard, here))
        from_digits = here & ~stored
        if from_digits.any():
            partials = np.where(stored[..., None], partials, to_partials(digits, numel))
        partials[~here] = NOTHING
        self._partials = merge(self._partials, partials)
        self._whole.held[:, rows] += np.where(here, numel, 0)
        self._whole.from_digits[:, rows] |= from_digits

    def result(self, whole: Floats) -> WholeBlock:
        """What the ranks have together, if that is `whole`."""
        found, rows = self._whole, self._sharded
        found.complete[:] = found.present.any(axis=0)
        if len(rows):
            complete = (found.held[:, rows] == whole[rows]) & (whole[rows] > 0)
            found.complete[:, rows] = complete
            found.present[..., rows] = False
            values = finalize(self._partials.reshape(-1, len(FIELDS)), self._ops).reshape(*complete.shape, -1)
            for column, (op, number) in enumerate(zip(self._ops, self._numbers, strict=True)):
                found.values[number][:, rows] = values[..., column]
                known = complete if op in mergeable(self._ops) else complete & ~found.from_digits[:, rows]
                found.present[number][:, rows] = known
            found.values[~found.present] = np.nan
        return found


def _derived(index: Index) -> tuple[list[int], list[str]]:
    """The statistics that follow from partials: their numbers and names."""
    numbers = [number for number, stat in enumerate(index.stats) if stat in OPS]
    return numbers, [index.stats[number] for number in numbers]


def _cells(index: Index) -> int:
    """A block has so many values that its partials, of eight numbers each, and a few temporaries do no harm."""
    return BLOCK_CELLS // 16 * len(index.stats)


def _steps(index: Index, block: Block) -> Ints:
    return index.steps[block.first : block.first + block.values.shape[1]]


def _parameter(key: TensorKey, data_type: str, known: Collection[TensorKey]) -> TensorKey:
    name = parameter_name(key.name, data_type, lambda name: attrs.evolve(key, name=name) in known)
    return key if name == key.name else attrs.evolve(key, name=name)


def _shards(run: Run, index: Index, rename: Rename) -> tuple[Ints, Floats, Floats]:
    """Which shards the ranks hold.

    Returns:
        (ranks, rows): a number, equal on ranks that hold the same shard, -1 where a rank holds none; (ranks, rows): its
        elements; (rows): elements of the whole tensor where the ranks hold shards, else NaN.
    """
    shape = (len(run.ranks), len(index.rows))
    shard, numel, whole = np.full(shape, -1), np.zeros(shape), np.full(shape[1], np.nan)
    entries = [
        (at, key, entry)
        for at, rank in enumerate(run.ranks.values())
        for place, entry in (rank.tensors or {}).items()
        if (key := rename(TensorKey(rank.pp_stage, *place))) is not None
    ]
    known = {key for _, key, _ in entries}
    rows_of: dict[TensorKey, list[int]] = {}
    for row, number in index.rows.items():
        rows_of.setdefault(_parameter(row.tensor, index.data_type, known), []).append(number)
    numbers: dict[tuple[TensorKey, str], int] = {}
    for at, key, entry in entries:
        own = entry.shard(index.data_type)
        if own is not None:
            rows = rows_of.get(key, [])
            whole[rows] = entry.numel
            shard[at, rows] = numbers.setdefault((key, own.part), len(numbers))
            numel[at, rows] = own.numel
    return shard, numel, whole
