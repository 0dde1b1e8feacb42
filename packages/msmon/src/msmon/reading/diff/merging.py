"""One block from the blocks of all ranks, for runs whose ranks do not correspond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

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
    """How many elements of each row's tensor each rank holds."""

    local: Floats
    """(ranks, rows); NaN where `run.json` does not say."""
    sharded: Mask
    """(rows): do the ranks hold different parts of it?"""


def merged_blocks(blocks: Sequence[Iterator[Block]], one: SidedRun, index: Index) -> Iterator[Block]:
    """The statistics of whole tensors from those of their parts.

    Where the ranks hold parts, min, max, absmax, nans, infs, norm, rms, mean and zeros follow exactly from those of the
    parts, std too if mean is there; another statistic is dropped. Where every rank holds the whole tensor, or
    `run.json` does not say, the first rank that has a value gives it; but min, max and absmax are always taken over all
    ranks.
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
            merged.values[number] = _first(values[:, number], present[:, number])
            if stat in _EXTREMES:
                merged.values[number] = _EXTREMES[stat](values[:, number], present[:, number])
            elif parts.sharded.any():
                mean = values[:, index.stats.index("mean")] if "mean" in index.stats else None
                whole = _whole(stat, values[:, number], present[:, number], parts.local[:, None], mean)
                merged.present[number, :, parts.sharded] &= whole is not None
                if whole is not None:
                    merged.values[number] = np.where(parts.sharded, whole, merged.values[number])
        merged.values[~merged.present] = np.nan
        yield merged


def _parts(one: SidedRun, index: Index) -> Parts:
    rename = one.renamer()
    local = np.full((len(one.run.ranks), len(index.rows)), np.nan)
    whole = np.full(len(index.rows), np.nan)
    rows_of: dict[TensorKey, list[int]] = {}
    for row, number in index.rows.items():
        rows_of.setdefault(row.tensor, []).append(number)
    for at, rank in enumerate(one.run.ranks.values()):
        entries = rank.info.get("tensors")
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                continue
            stage = entry.get("vpp_stage", 0)
            rows = rows_of.get(rename(TensorKey(rank.pp_stage, stage if isinstance(stage, int) else 0, entry["name"])))
            if rows and type(entry.get("numel")) is int and type(entry.get("local_numel")) is int:
                local[at, rows] = entry["local_numel"]
                whole[rows] = entry["numel"]
    with np.errstate(invalid="ignore"):
        return Parts(local=local, sharded=np.asarray((local < whole).any(axis=0)))


def _first(values: Floats, present: Mask) -> Floats:
    rank = present.argmax(axis=0)
    return np.asarray(np.take_along_axis(values, rank[None], axis=0)[0])


def _smallest(values: Floats, present: Mask) -> Floats:
    return np.asarray(np.where(present, values, np.inf).min(axis=0))


def _largest(values: Floats, present: Mask) -> Floats:
    return np.asarray(np.where(present, values, -np.inf).max(axis=0))


_EXTREMES = {"min": _smallest, "max": _largest, "absmax": _largest}


def _whole(
    stat: str,
    values: Floats,
    present: Mask,
    count: Floats,
    mean: Floats | None,
) -> Floats | None:
    """A statistic of a whole tensor, None where it does not follow; arrays of shape (ranks, steps, rows)."""
    values = np.where(present, values, 0.0)
    count = np.where(present, np.nan_to_num(count), 0.0)
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
            mean = np.where(present, mean, 0.0)
            # A part of one element has no std.
            within = np.sum(np.nan_to_num(values**2) * np.maximum(count - 1, 0), axis=0)
            center = np.sum(mean * count, axis=0) / total
            whole = np.sqrt((within + np.sum((mean - center) ** 2 * count, axis=0)) / (total - 1))
    return whole
