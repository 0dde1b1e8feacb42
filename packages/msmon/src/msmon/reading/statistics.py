"""What each statistic means to a reader: which of several values is the worst, and which scale shows it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Worst = Literal["largest", "smallest", "magnitude"]
Scale = Literal["log", "linear", "count"]

_SMALLEST = frozenset({"min", "entropy", "per_token_expert_entropy"})
_LARGEST = frozenset(
    {"max", "norm", "std", "rms", "absmax", "zeros", "nans", "infs", "sr", "kernel_norm", "softmax_max"}
    | {"router_weight_similarity"}
)
_COUNTS = frozenset({"nans", "infs"})
_SHARES = frozenset({"zeros", "entropy", "per_token_expert_entropy", "softmax_max", "router_weight_similarity"})

#: The statistic that a page shows first, where it was recorded.
PREFERRED = ("norm", "rms", "absmax", "std", "max")

Floats = npt.NDArray[np.float64]


def worst_of(stat: str) -> Worst:
    """Which of several values of `stat` (micro-steps, ranks, neighbouring steps) stands for them all.

    >>> worst_of("norm"), worst_of("min"), worst_of("mean")
    ('largest', 'smallest', 'magnitude')
    """
    if stat in _SMALLEST:
        return "smallest"
    return "largest" if stat in _LARGEST else "magnitude"


def scale_of(stat: str) -> Scale:
    """The colour and axis scale that fits: a share is linear, a count shows zero apart, the rest is logarithmic."""
    if stat in _COUNTS:
        return "count"
    return "linear" if stat in _SHARES else "log"


def pick_worst(stat: str, smallest: Floats, largest: Floats) -> Floats:
    """The worst value between the smallest and the largest of a set.

    `smallest` and `largest` come from `numpy.minimum` and `numpy.maximum`, so a NaN in the set is a NaN in both and
    wins. An empty set, smallest = +inf and largest = -inf, has to be masked by the caller.
    """
    kind = worst_of(stat)
    if kind == "largest":
        return largest
    if kind == "smallest":
        return smallest
    return np.where(np.abs(smallest) > np.abs(largest), smallest, largest)


def preferred(stats: tuple[str, ...]) -> str:
    """The statistic to show first.

    >>> preferred(("min", "mean", "norm"))
    'norm'
    """
    return next((stat for stat in PREFERRED if stat in stats), stats[0])
