"""Histograms with fixed edges, in which no value gets lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.math import Math


def histogram(tensor: Any, edges: Sequence[float]) -> Any:
    """Counts of values between fixed edges; NaN and Inf are counted apart.

    Args:
        tensor: any shape and real dtype.
        edges: at least two finite numbers, ascending. A bin holds `edges[i] <= x < edges[i + 1]`; the last one
            holds its upper edge too.

    Returns:
        float64 `[len(edges) + 4]` on the tensor's device (int32, where that has no float64): the finite values below
        the first edge, the `len(edges) - 1` bins, the finite values above the last edge, NaN, -Inf, +Inf. The sum is
        the number of elements. Histograms of parts add up.

    Raises:
        ValueError: edges that are fewer than two, not finite or not ascending.

    >>> import numpy as np
    >>> histogram(np.array([-9.0, 0.0, 0.5, 1.0, 9.0, np.nan, np.inf]), (0.0, 0.5, 1.0)).tolist()
    [1.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0]
    """
    xp: Math = backend_of(tensor).MATH
    edges = check_edges(edges)
    tensor = xp.real(tensor)
    with xp.quiet(tensor):
        total = xp.whole(xp.constant((0.0,) * (len(edges) + 4), tensor))
        for (part,) in xp.chunks(tensor):
            total = total + count(xp, part, edges)
        return total


def check_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """The edges as floats, or ValueError."""
    checked = tuple(float(edge) for edge in edges)
    ascending = all(a < b for a, b in pairwise(checked))
    if len(checked) < 2 or not ascending or not all(map(math.isfinite, checked)):
        raise ValueError(f"edges must be at least two finite numbers in ascending order, not {list(edges)}")
    return checked


def count(xp: Math, values: Any, edges: tuple[float, ...]) -> Any:
    """The counts of one flat piece."""
    wide = xp.wide(values)
    bins = len(edges)
    # The last bin ends behind its upper edge.
    ends = (*edges[:-1], math.nextafter(edges[-1], math.inf))
    index = xp.searchsorted(xp.constant(ends, wide), wide)
    for mask, slot in (
        (xp.isnan(wide), bins + 1),
        (wide == -math.inf, bins + 2),
        (wide == math.inf, bins + 3),
    ):
        index = xp.where(mask, slot, index)
    return xp.bincount(index, bins + 4)
