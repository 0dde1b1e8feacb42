"""Values over steps, thinned to a number of bins and combined over micro-steps: the worst value stands for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from msmon.reading.blocks import Block
from msmon.reading.index import Ints
from msmon.reading.statistics import Floats, pick_worst

Bits = npt.NDArray[np.uint32]

#: A float32 as bits; these two are no numbers. MISSING stays apart from NaN when only the upper half is kept.
NAN = np.uint32(0x7FC00000)
MISSING = np.uint32(0x7FC10000)

_LARGEST = float(np.finfo(np.float32).max)
_TINIEST = float(np.finfo(np.float32).smallest_subnormal)


@attrs.frozen(kw_only=True, eq=False)
class Bins:
    """Groups of consecutive steps."""

    starts: Ints
    """Positions of the first step of each bin among all steps."""
    width: int
    """How many steps fall into a bin; the last may have fewer."""
    first_steps: Ints
    last_steps: Ints

    def __len__(self) -> int:
        return len(self.starts)


def make_bins(steps: Ints, limit: int) -> Bins:
    """At most `limit` bins over the steps, all of the same number of steps but the last.

    >>> bins = make_bins(np.arange(10), 4)
    >>> bins.first_steps.tolist(), bins.last_steps.tolist()
    ([0, 3, 6, 9], [2, 5, 8, 9])
    """
    return bins_of(steps, max(-(-len(steps) // max(limit, 1)), 1))


def bins_of(steps: Ints, width: int) -> Bins:
    """Bins of `width` steps."""
    starts = np.arange(0, len(steps), width)
    ends = np.append(starts[1:], len(steps)) - 1
    return Bins(starts=starts, width=width, first_steps=steps[starts], last_steps=steps[ends])


class Binner:
    """Gathers the worst value of each statistic, tensor and bin from blocks.

    Args:
        stats: the statistics of the blocks.
        bins: each block has to begin where a bin begins.
        row_tensor: for each row of the blocks the number of its tensor; rows of one tensor are its micro-steps.
        tensors: how many tensors there are.
    """

    def __init__(self, stats: Sequence[str], bins: Bins, row_tensor: Ints, tensors: int) -> None:
        self._stats = stats
        self._bins = bins
        self._order = np.argsort(row_tensor, kind="stable")
        in_order = row_tensor[self._order]
        self._cuts = np.flatnonzero(np.diff(in_order, prepend=-1))
        self._tensors = in_order[self._cuts]
        self.values: Bits = np.full((len(stats), tensors, len(bins)), MISSING, dtype=np.uint32)
        """float32 bits of shape (statistics, tensors, bins)."""

    def add(self, block: Block) -> None:
        """Take one block."""
        end = block.first + block.values.shape[1]
        inside = np.flatnonzero((self._bins.starts >= block.first) & (self._bins.starts < end))
        cuts = self._bins.starts[inside] - block.first
        for number, stat in enumerate(self._stats):
            low, high = _reduced(_extremes(block.values[number], block.present[number]), cuts, axis=0)
            low, high = low[:, self._order], high[:, self._order]
            if len(self._cuts) < len(self._order):
                low, high = _reduced((low, high), self._cuts, axis=1)
            self.values[number, self._tensors[:, None], inside] = _bits(stat, low, high).T


def bin_blocks(blocks: Iterable[Block], stats: Sequence[str], bins: Bins, row_tensor: Ints, tensors: int) -> Bits:
    """What a `Binner` gathers from all `blocks`."""
    binner = Binner(stats, bins, row_tensor, tensors)
    for block in blocks:
        binner.add(block)
    return binner.values


def coarsen(values: Bits, stats: Sequence[str], factor: int) -> Bits:
    """`factor` neighbouring bins of an array (..., statistics, tensors, bins) become one."""
    cuts = np.arange(0, values.shape[-1], factor)
    out = np.empty((*values.shape[:-1], len(cuts)), dtype=np.uint32)
    for number, stat in enumerate(stats):
        out[..., number, :, :] = _bits(stat, *_reduced(_extremes(*_decode(values[..., number, :, :])), cuts, axis=-1))
    return out


def worst_over(values: Iterable[Bits], stats: Sequence[str]) -> Bits:
    """The worst of several arrays (statistics, tensors, bins), cell by cell: several ranks."""
    pairs = (_extremes(*_decode(array)) for array in values)
    low, high = next(pairs)
    for lower, higher in pairs:
        np.minimum(low, lower, out=low)
        np.maximum(high, higher, out=high)
    return np.stack([_bits(stat, low[i], high[i]) for i, stat in enumerate(stats)])


def worst_of_groups(values: Bits, stats: Sequence[str], group_of: Ints, groups: int) -> Bits:
    """The worst tensor of each group, from an array (statistics, tensors, bins)."""
    order = np.argsort(group_of, kind="stable")
    sorted_groups = group_of[order]
    first = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    out = np.full((len(stats), groups, values.shape[2]), MISSING, dtype=np.uint32)
    for number, stat in enumerate(stats):
        extremes = _reduced(_extremes(*_decode(values[number][order])), first, axis=0)
        out[number, sorted_groups[first]] = _bits(stat, *extremes)
    return out


def to_float(values: Bits) -> npt.NDArray[np.float32]:
    """The numbers, with NaN also where a value is missing."""
    return values.view(np.float32)


def _extremes(values: npt.NDArray[np.floating], present: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Twice the values: +inf and -inf where there is none, so that these lose against everything."""
    if present.all():
        return values.astype(np.float64, copy=False), values.astype(np.float64, copy=False)
    return np.where(present, values, np.inf), np.where(present, values, -np.inf)


def _reduced(extremes: tuple[Floats, Floats], cuts: Ints, axis: int) -> tuple[Floats, Floats]:
    """Those of each group of neighbours, which begin at `cuts`."""
    return np.minimum.reduceat(extremes[0], cuts, axis=axis), np.maximum.reduceat(extremes[1], cuts, axis=axis)


def _decode(bits: Bits) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.bool_]]:
    return bits.view(np.float32), bits != MISSING


def _bits(stat: str, low: Floats, high: Floats) -> Bits:
    missing = low > high
    worst = pick_worst(stat, low, high)
    finite = np.isfinite(worst)
    # What float32 cannot hold must not turn into Inf or zero.
    clipped = np.where(finite, np.clip(worst, -_LARGEST, _LARGEST), worst)
    tiny = finite & (worst != 0) & (np.abs(worst) < _TINIEST)
    if tiny.any():
        clipped[tiny] = np.copysign(_TINIEST, worst[tiny])
    bits = np.ascontiguousarray(clipped, dtype=np.float32).view(np.uint32)
    bits[np.isnan(worst)] = NAN
    bits[missing] = MISSING
    return bits
