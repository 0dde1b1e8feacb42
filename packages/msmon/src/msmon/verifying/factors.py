"""By which factor the gradients of a step were clipped or scaled: what most of their sums agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from msmon.reading.statistics import Floats
from msmon.verifying.gradient_sums import Sums

Members = tuple[int, ...]
"""Positions of ranks that sum up gradients."""
Factor = tuple[float, float]
"""The factor, and how exact it is; NaN where no sum tells it."""

#: Sums whose rounding is less than this share of their size tell the factor.
_TELLING = 0.02
#: So many sums, and so large a share of a group's, make a factor of their own.
_FEW, _MOST = 3, 0.8

UNKNOWN: Factor = (np.nan, np.nan)


def factors_at(at: int, groups: Mapping[Members, Sequence[Sums]]) -> dict[Members, Factor]:
    """The factor of each group of ranks at one step.

    Groups that share a rank share its factor, since a process clips all of its gradients at once: so tensors that are
    summed over other ranks than most, and wrongly, do not pass for clipped. But where most of a group agree on another
    factor it has one of its own.

    Args:
        at: the step in the sums.
        groups: what is known of each group.
    """
    found = {}
    for joined in _joined(groups):
        together = _agreed([sums for members in joined for sums in groups[members]], at)
        for members in joined:
            own = _agreed(groups[members], at)
            found[members] = own if _differs(groups[members], at, own, together) else together
    return found


def _joined(groups: Mapping[Members, Sequence[Sums]]) -> list[list[Members]]:
    """The groups that share ranks. Where a divisor is not known, the factor includes it, and is the group's own."""
    found: list[tuple[set[int], list[Members]]] = []
    alone = [members for members, own in groups.items() if not all(sums.divisor_known for sums in own)]
    for members in groups:
        if members in alone:
            continue
        ranks, names = set(members), [members]
        rest = []
        for other, more in found:
            if ranks & other:
                ranks, names = ranks | other, [*more, *names]
            else:
                rest.append((other, more))
        found = [*rest, (ranks, names)]
    return [*(names for _, names in found), *([members] for members in alone)]


def _differs(own: Sequence[Sums], at: int, factor: Factor, together: Factor) -> bool:
    if not np.isfinite([factor[0], together[0]]).all() or abs(factor[0] - together[0]) <= factor[1] + together[1]:
        return False
    ratio, exact = _ratios(own, at)
    if len(ratio) < _FEW:
        return False
    agree = [
        float((np.abs(ratio - value) <= exact * max(value, 1.0) + limit).mean()) for value, limit in (factor, together)
    ]
    return agree[0] >= _MOST and agree[1] <= 1 - _MOST


def _ratios(own: Sequence[Sums], at: int) -> tuple[Floats, Floats]:
    """Sums after over sums before that tell the factor, and how exactly they do."""
    found = np.concatenate([sums.found[at] for sums in own])
    expected = np.concatenate([sums.expected[at] for sums in own])
    limit = np.concatenate([sums.limit[at] for sums in own])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio, exact = found / expected, limit / np.abs(expected)
    telling = np.isfinite(ratio) & (exact < _TELLING)
    return ratio[telling], exact[telling]


def _agreed(own: Sequence[Sums], at: int) -> Factor:
    ratio, exact = _ratios(own, at)
    if not len(ratio):
        return UNKNOWN
    order = np.argsort(ratio, kind="stable")
    # The weighted median: the more exact a ratio is, the more it counts.
    weights = np.cumsum(1 / np.maximum(exact[order], 1e-12))
    middle = order[int(np.searchsorted(weights, weights[-1] / 2))]
    return float(ratio[middle]), float(exact[middle] * max(abs(ratio[middle]), 1.0))
