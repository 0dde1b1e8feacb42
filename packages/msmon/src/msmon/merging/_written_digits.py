"""The statistics of a CSV row, back to sufficient statistics: as exact as the written digits."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan

import numpy as np
from numpy.typing import NDArray

_POISONED = ("min", "max", "norm", "rms", "absmax")
"""Are nan if and only if the tensor holds a NaN."""


def to_partial(values: Mapping[str, float], numel: int) -> NDArray[np.float64]:
    """A row of partials from which the same statistics come out again.

    What the statistics do not tell stays neutral; it is not asked for, since parts of one tensor have the same columns.

    Args:
        values: statistic -> value.
        numel: elements of the part.

    Returns:
        float64 ``[8]``, columns :data:`msmon_stats.FIELDS`.

    Example:
        >>> from msmon_stats import finalize
        >>> finalize(to_partial({"norm": 5.0, "mean": -0.5}, 2)[None], ["norm", "mean"]).tolist()
        [[5.0, -0.5]]
    """
    poisoned = any(isnan(values.get(op, 0.0)) for op in _POISONED)
    absmax = values.get("absmax", -inf)
    mean = values.get("mean", 0.0)
    if "norm" in values:
        sumsq = values["norm"] ** 2
    elif "rms" in values:
        sumsq = values["rms"] ** 2 * numel
    else:
        # Of fewer than two elements there is no standard deviation, and no spread either.
        sumsq = (values.get("std", 0.0) ** 2 * (numel - 1) if numel > 1 else 0.0) + mean**2 * numel
    return np.array(
        [
            numel,
            values.get("nans", float(poisoned)),
            values.get("infs", 0.0),
            values.get("zeros", 0.0) * numel,
            values.get("min", -absmax),
            values.get("max", absmax),
            mean * numel,
            sumsq,
        ]
    )


def mergeable(ops: list[str]) -> list[str]:
    """The statistics that can be merged from these columns: a standard deviation needs the mean beside it."""
    return [op for op in ops if op != "std" or "mean" in ops]
