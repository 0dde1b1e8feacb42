"""Statistics as they were written, back to sufficient statistics: as exact as the written digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msmon_stats import FIELDS

_POISONED = ("min", "max", "norm", "rms", "absmax")
"""Are nan if and only if the tensor holds a NaN."""


def to_partials(values: Mapping[str, NDArray[np.float64]], numel: ArrayLike) -> NDArray[np.float64]:
    """Partials from which the same statistics come out again.

    What the statistics do not tell stays neutral; it is not asked for, since parts of one tensor have the same columns.

    Args:
        values: statistic -> values, all of one shape.
        numel: elements of each part, of that shape or one that fits to it.

    Returns:
        float64 `[..., 8]`, columns `msmon_stats.FIELDS`.

    Example:
        >>> from msmon_stats import finalize
        >>> finalize(to_partials({"norm": np.array([5.0]), "mean": np.array([-0.5])}, [2]), ["norm", "mean"]).tolist()
        [[5.0, -0.5]]
    """
    numel = np.asarray(numel, dtype=np.float64)
    shape = np.broadcast_shapes(numel.shape, *(value.shape for value in values.values()))
    given: dict[str, Any] = dict(values)
    poisoned = np.zeros(shape, dtype=np.bool_)
    for op in _POISONED:
        poisoned |= np.isnan(given.get(op, 0.0))
    absmax, mean = given.get("absmax", -np.inf), given.get("mean", 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        if "norm" in given:
            sumsq = given["norm"] ** 2
        elif "rms" in given:
            sumsq = given["rms"] ** 2 * numel
        else:
            # Of fewer than two elements there is no standard deviation, and no spread either.
            spread = np.where(numel > 1, given.get("std", 0.0) ** 2 * (numel - 1), 0.0)
            sumsq = spread + mean**2 * numel
        fields = {
            "count": numel,
            "nans": given.get("nans", poisoned),
            "infs": given.get("infs", 0.0),
            "zeros": given.get("zeros", 0.0) * numel,
            "min": given.get("min", -absmax),
            "max": given.get("max", absmax),
            "sum": mean * numel,
            "sumsq": sumsq,
        }
    result = np.empty((*shape, len(FIELDS)))
    for column, name in enumerate(FIELDS):
        result[..., column] = fields[name]
    return result


def mergeable(ops: Sequence[str]) -> list[str]:
    """The statistics that can be merged from these columns: a standard deviation needs the mean beside it."""
    return [op for op in ops if op != "std" or "mean" in ops]
