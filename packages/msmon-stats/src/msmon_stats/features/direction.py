"""Do the gradient and the momentum point the same way?"""

from __future__ import annotations

import math
from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.math import Math


def sign_agreement(gradient: Any, momentum: Any) -> Any:
    """The share of elements whose gradient and momentum have the same sign: `(mean(sign(g) * sign(m)) + 1) / 2`.

    Args:
        gradient: any shape and real dtype.
        momentum: of the same shape and device, as it was before the step that consumes the gradient.

    Returns:
        float64 0-d on their device: 1 where all signs agree, 0 where all are opposite; an element that is 0 on either
        side counts one half. NaN if there is a NaN or no element.

    Raises:
        ValueError: different shapes.

    >>> import numpy as np
    >>> float(sign_agreement(np.array([1.0, -2.0, 3.0, 0.0]), np.array([2.0, -1.0, -1.0, 5.0])))
    0.625
    """
    xp: Math = backend_of(gradient).MATH
    gradient, momentum = xp.real(gradient), xp.real(momentum)
    if tuple(gradient.shape) != tuple(momentum.shape):
        raise ValueError(f"gradient {tuple(gradient.shape)} and momentum {tuple(momentum.shape)} differ in shape")
    count = math.prod(gradient.shape)
    if count == 0:
        return xp.constant((math.nan,), gradient)[0]
    with xp.quiet(gradient):
        # The signs are multiplied, not the values: a product of small numbers would be 0.
        total = sum(xp.sum(xp.wide(xp.sign(g) * xp.sign(m))) for g, m in xp.chunks(gradient, momentum))
        return (total / count + 1.0) / 2.0
