"""What Adam does with its moments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.histograms import check_edges, count
from msmon_stats.features.math import Math


def adam_update(
    exp_avg: Any, exp_avg_sq: Any, *, step: Any, betas: tuple[Any, Any], eps: float = 1e-8
) -> tuple[Any, Any]:
    """Adam's update and ratio (Kingma and Ba 2015, algorithm 1), before the learning rate and weight decay.

    With `m_hat = exp_avg / (1 - beta1^step)` and `v_hat = exp_avg_sq / (1 - beta2^step)`

    * update = `m_hat / (sqrt(v_hat) + eps)`
    * ratio = `m_hat / sqrt(v_hat)`: the update without the safeguard, NaN where both moments are 0.

    Args:
        exp_avg: first moment.
        exp_avg_sq: second moment, of the same shape.
        step: how many steps the moments have seen, at least 1; a number or a 0-d tensor.
        betas: decay rates of the moments; numbers or 0-d tensors.
        eps: what keeps the division finite.

    Returns:
        Two tensors of the moments' shape in float32 (float64 for float64 moments), as large as the moments:
        `adam_histograms` needs no such memory.

    >>> import numpy as np
    >>> update, ratio = adam_update(np.array([0.1]), np.array([0.001]), step=1, betas=(0.9, 0.999), eps=1.0)
    >>> float(update[0].round(6)), float(ratio[0].round(6))
    (0.5, 1.0)
    """
    xp: Math = backend_of(exp_avg).MATH
    exp_avg, exp_avg_sq = xp.real(exp_avg), xp.real(exp_avg_sq)
    with xp.quiet(exp_avg):
        return _update(xp, exp_avg, exp_avg_sq, _corrections(xp, step, betas), eps)


def adam_histograms(
    exp_avg: Any,
    exp_avg_sq: Any,
    edges: Sequence[float],
    *,
    step: Any,
    betas: tuple[Any, Any],
    eps: float = 1e-8,
) -> Any:
    """Histograms of Adam's update and ratio, see `adam_update`; `[2, len(edges) + 4]`.

    Each row as `histogram` gives it. The memory it takes does not grow with the moments.

    >>> import numpy as np
    >>> counts = adam_histograms(np.ones(3), np.ones(3), (-1.0, 0.0, 2.0), step=1000, betas=(0.5, 0.5))
    >>> counts[0].tolist()
    [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    """
    xp: Math = backend_of(exp_avg).MATH
    edges = check_edges(edges)
    exp_avg, exp_avg_sq = xp.real(exp_avg), xp.real(exp_avg_sq)
    with xp.quiet(exp_avg):
        corrections = _corrections(xp, step, betas)
        total = xp.whole(xp.constant((0.0,) * (2 * (len(edges) + 4)), exp_avg)).reshape(2, -1)
        for m, v in xp.chunks(exp_avg, exp_avg_sq):
            total = total + xp.stack([count(xp, part, edges) for part in _update(xp, m, v, corrections, eps)])
        return total


def _corrections(xp: Math, step: Any, betas: tuple[Any, Any]) -> tuple[Any, Any]:
    """The factors that undo the bias of moments that began at 0."""
    if isinstance(step, (int, float)):
        return 1.0 - betas[0] ** step, 1.0 - betas[1] ** step
    step = xp.wide(xp.real(step))
    # 1 - beta ** step, which loses digits where beta is near to 1 and there is no float64.
    first, second = (-xp.expm1(step * _log(xp, beta)) for beta in betas)
    return first, second


def _log(xp: Math, beta: Any) -> Any:
    if isinstance(beta, (int, float)):
        return math.log(beta) if beta > 0 else -math.inf
    return xp.log(xp.wide(xp.real(beta)))


def _update(xp: Math, m: Any, v: Any, corrections: tuple[Any, Any], eps: float) -> tuple[Any, Any]:
    m_hat, v_hat = xp.single(m) / corrections[0], xp.single(v) / corrections[1]
    root = xp.sqrt(v_hat)
    return m_hat / (root + eps), m_hat / root
