"""One block from the blocks of all ranks, for runs whose ranks do not correspond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from msmon.merging.written_digits import mergeable, to_partials
from msmon.reading.blocks import Block
from msmon.reading.index import Index, TensorKey
from msmon.reading.statistics import Floats
from msmon_stats import FIELDS, OPS, finalize, merge

if TYPE_CHECKING:
    from msmon.reading.diff.pairing import SidedRun


_NOTHING = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 0.0])
"""The partials of no element."""

Mask = npt.NDArray[np.bool_]


@attrs.frozen(kw_only=True, eq=False)
class Parts:
    """Which part of each row's tensor each rank holds."""

    count: Floats
    """(ranks, rows): elements of the part; 0 where the rank holds none, or one that an earlier rank holds too."""
    whole: Floats
    """(rows): elements of the whole tensor where the ranks hold parts, else NaN."""

    @property
    def sharded(self) -> Mask:
        """(rows): do the ranks hold different parts?"""
        return ~np.isnan(self.whole)


def merged_blocks(blocks: Sequence[Iterator[Block]], one: SidedRun, index: Index) -> Iterator[Block]:
    """The statistics of whole tensors from those of their parts.

    Where the ranks hold parts, the statistics of tensors follow from those of the parts, std if mean is there; another
    statistic (of attention, say) is dropped, and so is a tensor of which a part is missing. Where every
    rank holds the whole tensor, or `run.json` does not say, the first rank that has a value gives it; but min, max and
    absmax are always taken over all ranks.
    """
    parts = _parts(one, index)
    cut = np.flatnonzero(parts.sharded)
    ops = [stat for stat in index.stats if stat in OPS]
    for together in zip(*blocks, strict=True):
        values = np.stack([block.values for block in together])
        present = np.stack([block.present for block in together])
        merged = Block(
            first=together[0].first,
            values=np.full(values.shape[1:], np.nan),
            present=np.asarray(present.any(axis=0)),
        )
        for number, stat in enumerate(index.stats):
            pick = _EXTREMES.get(stat, _first)
            merged.values[number] = pick(values[:, number], present[:, number])
        if len(cut):
            merged.present[..., cut] = False
            if not _join(merged, values[..., cut], present[..., cut], parts, index.stats, ops):
                one.run.note(f"{index.data_type}: of some tensors a part is missing; they are not compared there")
        merged.values[~merged.present] = np.nan
        yield merged


def _join(merged: Block, values: Floats, present: Mask, parts: Parts, stats: Sequence[str], ops: Sequence[str]) -> bool:
    """Put whole tensors into the block; False if some have parts that are missing.

    Args:
        values, present: of the parts, (ranks, statistics, steps, cut rows).
        ops: those of `stats` that follow from parts.
    """
    cut = np.flatnonzero(parts.sharded)
    numbers = [stats.index(op) for op in ops]
    here = present[:, numbers].all(axis=1) if ops else present.any(axis=1)
    count = np.where(here, parts.count[:, None, cut], 0.0)
    complete = count.sum(axis=0) == parts.whole[cut]
    if ops:
        whole = np.broadcast_to(_NOTHING, (complete.size, len(FIELDS)))
        for rank in range(len(values)):
            part = to_partials({op: values[rank, number] for op, number in zip(ops, numbers, strict=True)}, count[rank])
            part[count[rank] == 0] = _NOTHING
            whole = merge(whole, part.reshape(whole.shape))
        found = finalize(whole, ops)
        for column, op in enumerate(ops):
            if op in mergeable(ops):
                merged.values[numbers[column]][:, cut] = found[:, column].reshape(complete.shape)
                merged.present[numbers[column]][:, cut] = complete
    return bool((complete | ~here.any(axis=0)).all())


def _parts(one: SidedRun, index: Index) -> Parts:
    rename = one.renamer()
    count = np.zeros((len(one.run.ranks), len(index.rows)))
    whole = np.full(len(index.rows), np.nan)
    rows_of: dict[TensorKey, list[int]] = {}
    for row, number in index.rows.items():
        rows_of.setdefault(row.tensor, []).append(number)
    seen: set[tuple[TensorKey, str]] = set()
    for at, rank in enumerate(one.run.ranks.values()):
        for entry in _entries(rank.info.get("tensors")):
            stage = entry.get("vpp_stage")
            key = rename(TensorKey(rank.pp_stage, stage if isinstance(stage, int) else 0, entry["name"]))
            for shard in _entries(entry.get("shards"), "part"):
                if key in rows_of and index.data_type in shard.get("data_types", ()):
                    whole[rows_of[key]] = entry.get("numel", 0)
                    if (key, shard["part"]) not in seen:
                        seen.add((key, shard["part"]))
                        count[at, rows_of[key]] += shard.get("local_numel", 0)
    return Parts(count=count, whole=whole)


def _entries(found: object, name: str = "name") -> Iterator[Mapping[str, Any]]:
    for entry in found if isinstance(found, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get(name), str):
            yield entry


def _first(values: Floats, present: Mask) -> Floats:
    rank = present.argmax(axis=0)
    return np.asarray(np.take_along_axis(values, rank[None], axis=0)[0])


def _smallest(values: Floats, present: Mask) -> Floats:
    return np.asarray(np.where(present, values, np.inf).min(axis=0))


def _largest(values: Floats, present: Mask) -> Floats:
    return np.asarray(np.where(present, values, -np.inf).max(axis=0))


_EXTREMES = {"min": _smallest, "max": _largest, "absmax": _largest}
