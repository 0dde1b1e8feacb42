"""Do the experts of a mixture differ, and does the router choose?"""

from __future__ import annotations

import math
from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.attention import entropy_and_largest
from msmon_stats.features.math import Math

_LOGITS = 1 << 20


def router_similarity(weight: Any) -> Any:
    """Mean cosine similarity over all pairs of experts of a router weight.

    Args:
        weight: 2-D. The smaller axis counts the experts; of a square one the rows do, as in `nn.Linear.weight`.

    Returns:
        float64 0-d on the device, between -1 and 1; NaN for fewer than two experts. An expert whose weights are all 0
        has the similarity 0 to every other.

    Raises:
        ValueError: a weight that is not 2-D.

    >>> import numpy as np
    >>> float(router_similarity(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])))
    0.0
    """
    xp: Math = backend_of(weight).MATH
    weight = xp.real(weight)
    if len(weight.shape) != 2:
        raise ValueError(f"a router weight must be 2-D, not of shape {tuple(weight.shape)}")
    with xp.quiet(weight):
        rows = weight if weight.shape[0] <= weight.shape[1] else weight.T
        experts = rows.shape[0]
        if experts < 2:
            return xp.constant((math.nan,), weight)[0]
        wide = xp.wide(rows)
        length = xp.sqrt(xp.sum(wide * wide, -1))
        unit = wide / xp.where(length == 0.0, length + 1.0, length)[:, None]
        # The cosines of all ordered pairs, an expert with itself included, add up to the squared length of the sum.
        together = xp.sum(unit, 0)
        return (xp.sum(together * together) - xp.sum(unit * unit)) / (experts * (experts - 1))


def router_entropy(logits: Any) -> Any:
    """Mean over tokens of the entropy of `softmax(logits)`, in nats.

    Probabilities are taken as such: values none of which is below 0, and that add up to 1 for every token.

    Args:
        logits: `[..., experts]`; an expert that is masked with -inf has the probability 0.

    Returns:
        float64 0-d on the device; NaN without tokens, and if a token has no expert or a NaN.

    Raises:
        ValueError: 0-d logits, or no experts.

    >>> import numpy as np
    >>> float(router_entropy(np.zeros((5, 8))).__round__(4))
    2.0794
    """
    xp: Math = backend_of(logits).MATH
    logits = xp.real(logits)
    if len(logits.shape) == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must be [..., experts], not of shape {tuple(logits.shape)}")
    experts = int(logits.shape[-1])
    tokens = math.prod(logits.shape) // experts
    if tokens == 0:
        return xp.constant((math.nan,), logits)[0]
    with xp.quiet(logits):
        table = logits.reshape(tokens, experts)
        rows = max(1, _LOGITS // experts)
        softmax: Any = 0.0
        given: Any = 0.0
        distributions: Any = 0.0
        for start in range(0, tokens, rows):
            part = xp.single(table[start : start + rows])
            softmax = softmax + xp.sum(entropy_and_largest(xp, part)[0])
            wide = xp.wide(part)
            given = given - xp.sum(wide * xp.log(xp.where(wide > 0.0, wide, wide * 0.0 + 1.0)))
            sums = xp.sum(wide, -1)
            # 1 up to the rounding of bfloat16.
            adds_up = xp.wide(sums > 0.99) * xp.wide(sums < 1.01)
            distributions = distributions + xp.sum(adds_up * xp.wide(-xp.largest(-wide, -1) >= 0.0))
        return xp.where(distributions == tokens, given, softmax) / tokens
