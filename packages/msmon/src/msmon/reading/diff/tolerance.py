"""How far two values may lie apart."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from msmon.reading.blocks import Block
from msmon.reading.statistics import Floats, scale_of

#: A difference counts when it is so many times the largest one between a run and its repetition.
NOISE_FACTOR = 3.0


@attrs.frozen(kw_only=True, eq=False)
class Noise:
    """The largest differences between a run and its repetition."""

    absolute: Floats
    """Shape (statistics, rows)."""
    relative: Floats
    """Over the size of the values; the same shape."""
    typical: Floats
    """Of each statistic the median of `relative` over all tensors of the data type: one tensor can agree by chance."""


@attrs.frozen(kw_only=True)
class Tolerance:
    """atol + rtol * size, and the noise where it is known.

    The size is max(abs(a), abs(b)); but a share of elements has the size 1, and a mean at least that of the tensor's
    elements, since a mean near 0 is what rounding left over.
    """

    rtol: float
    atol: float

    def excess(
        self, a: Floats, b: Floats, floor: Floats | float = 0.0, noise: tuple[Floats, Floats, float] | None = None
    ) -> Floats:
        """abs(a - b) over the tolerance, for values that are not equal; inf where one is NaN or another infinity.

        Args:
            a, b: 1-D.
            floor: the least size, of each value or of all.
            noise: absolute and relative noise of each value, the smaller of the two limits applies; and the typical
                relative noise, which is the least that applies.
        """
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            size = np.maximum(np.abs(a), np.abs(b))
            size = np.fmax(size, floor)
            limit = self.atol + self.rtol * size
            if noise is not None:
                absolute, relative, typical = noise
                limit += NOISE_FACTOR * np.fmax(np.fmin(absolute, relative * size), typical * size)
            excess = np.abs(a - b) / limit
        finite = np.isfinite(a) & np.isfinite(b)
        return np.where(finite, excess, np.inf)


def size_floor(stat: str, stats: Sequence[str], block: Block) -> Floats | float:
    """The least size of a statistic's values: a number, or an array of shape (steps, rows) with NaN for unknown."""
    if scale_of(stat) == "linear":
        return 1.0
    if stat != "mean":
        return 0.0
    for known in ("rms",), ("absmax",), ("min", "max"):
        if set(known) <= set(stats):
            return np.asarray(np.abs(block.values[[stats.index(one) for one in known]]).max(axis=0))
    return 0.0
