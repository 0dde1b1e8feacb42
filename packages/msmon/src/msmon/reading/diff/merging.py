"""One block from the blocks of all ranks, for runs whose ranks do not correspond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from ..blocks import Block
from ..index import Index, TensorKey
from ..statistics import Floats

if TYPE_CHECKING:
    from .pairing import SidedRun


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

    Where the ranks hold parts, min, max, absmax, nans, infs, norm, rms, mean and zeros follow from those of the parts,
    std too if mean is there; another statistic is dropped, and so is a tensor of which a part is missing. Where every
    rank holds the whole tensor, or `run.json` does not say, the first rank that has a value gives it; but min, max and
    absmax are always taken over all ranks.
    """
    parts = _parts(one, index)
    for together in zip(*blocks, strict=True):
        values = np.stack([block.values for block in together])
        present = np.stack([block.present for block in together])
        merged = Block(
            first=together[0].first,
            values=np.full(values.shape[1:], np.nan),
            present=np.asarray(present.any(axis=0)),
        )
        for number, stat in enumerate(index.stats):
            here = present[:, number]
            merged.values[number] = _first(values[:, number], here)
            if stat in _EXTREMES:
                merged.values[number] = _EXTREMES[stat](values[:, number], here)
            if not parts.sharded.any():
                continue
            mean = values[:, index.stats.index("mean")] if "mean" in index.stats else None
            count = np.where(here, parts.count[:, None], 0.0)
            complete = count.sum(axis=0) == parts.whole
            merged.present[number] &= complete | ~parts.sharded
            if (here.any(axis=0) & ~complete & parts.sharded).any():
                one.run.note(f"{index.data_type}: of some tensors a part is missing; they are not compared there")
            if stat not in _EXTREMES:
                whole = _whole(stat, values[:, number], count, mean)
                merged.present[number, :, parts.sharded] &= whole is not None
                if whole is not None:
                    merged.values[number] = np.where(parts.sharded, whole, merged.values[number])
        merged.values[~merged.present] = np.nan
        yield merged


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


def _whole(stat: str, values: Floats, count: Floats, mean: Floats | None) -> Floats | None:
    """A statistic of whole tensors, None where it does not follow.

    Args:
        values, mean: of the parts, (ranks, steps, rows).
        count: elements of the parts, the same shape; 0 for those that do not count.
    """
    values = np.where(count > 0, values, 0.0)
    total = np.sum(count, axis=0)
    whole: Floats | None = None
    with np.errstate(invalid="ignore", divide="ignore"):
        if stat in ("nans", "infs"):
            whole = np.sum(values, axis=0)
        elif stat == "norm":
            whole = np.sqrt(np.sum(values**2, axis=0))
        elif stat in ("mean", "zeros"):
            whole = np.sum(values * count, axis=0) / total
        elif stat == "rms":
            whole = np.sqrt(np.sum(values**2 * count, axis=0) / total)
        elif stat == "std" and mean is not None:
            mean = np.where(count > 0, mean, 0.0)
            # A part of one element has no std.
            within = np.sum(np.where(count > 1, values**2 * (count - 1), 0.0), axis=0)
            center = np.sum(mean * count, axis=0) / total
            whole = np.sqrt((within + np.sum((mean - center) ** 2 * count, axis=0)) / (total - 1))
    return whole
