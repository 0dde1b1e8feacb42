"""The largest singular value of a matrix, and how many directions it has."""

from __future__ import annotations

from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.math import Math

STEPS = 32
"""Lanczos steps. Their error does not depend on the gap between the first two singular values: it shrinks with the
square of the number of steps even without one (Kuczynski and Wozniakowski 1992), where plain power iteration needs
thousands."""

# With P = G^(2^14) an eigenvalue of G counts for nothing that lies more than 1e-3 below the largest.
_SQUARINGS = 14

# What is added to a length by which is divided: lengths are near 1, and 0 stays 0.
_TINY = 1e-30


def linear_features(weight: Any) -> Any:
    """Stable rank and spectral norm of a matrix.

    The spectral norm comes from Golub-Kahan-Lanczos bidiagonalization (Golub and Kahan 1965) from a fixed start: the
    matrix is multiplied with vectors only, and no random number is drawn. Nothing is made orthogonal again: what that
    loses are copies of singular values that were found already (Paige 1971), and the largest is wanted.

    Args:
        weight: 2-D, any real dtype. Half precision is copied to float32 while it is measured.

    Returns:
        float64 `[2]` on the device: the Frobenius norm over the largest singular value, and the largest singular
        value, to a relative error of 1e-3. A matrix of zeros gives NaN and 0, one with NaN or Inf gives NaN.

    Raises:
        ValueError: a weight that is not 2-D, or empty.

    >>> import numpy as np
    >>> linear_features(np.diag([3.0, 4.0])).round(6).tolist()
    [1.25, 4.0]
    """
    xp: Math = backend_of(weight).MATH
    weight = xp.real(weight)
    if len(weight.shape) != 2 or 0 in tuple(weight.shape):
        raise ValueError(f"a weight must be 2-D with elements, not of shape {tuple(weight.shape)}")
    with xp.quiet(weight):
        matrix = xp.single(weight)
        # Of a matrix whose largest entry is 1 no square overflows or vanishes.
        size = _divisor(xp, xp.largest_size(matrix))
        frobenius = xp.norm(xp.stack([xp.norm(part / size) for (part,) in xp.chunks(matrix)]))
        largest = _largest(xp, *_bidiagonal(xp, matrix, size, min(STEPS, *matrix.shape)))
        return xp.stack([frobenius / largest, largest * xp.wide(size)])


def _bidiagonal(xp: Math, matrix: Any, size: Any, steps: int) -> tuple[list[Any], list[Any]]:
    """Diagonal and superdiagonal of the bidiagonal matrix that approximates the top of the spectrum of `matrix / size`.

    The vectors are kept divided by `size`, and so is what the matrix makes of them.
    """
    transposed = matrix.T
    minus_size, tiny = -size, size * _TINY
    start = _start(xp, matrix)
    # The first right vector lies in the row space, so no step is spent on what the matrix maps to 0.
    right, _, _ = _unit(xp, transposed @ (start / size), minus_size, tiny)
    left, alpha, stretch = _unit(xp, matrix @ right, minus_size, tiny)
    diagonal, above = [alpha], []
    for _ in range(steps - 1):
        right, beta, stretch = _unit(xp, xp.minus(transposed @ left, stretch, right), minus_size, tiny)
        left, alpha, stretch = _unit(xp, xp.minus(matrix @ right, stretch, left), minus_size, tiny)
        diagonal.append(alpha)
        above.append(beta)
    return diagonal, above


def _start(xp: Math, matrix: Any) -> Any:
    """A vector that looks random and is the same every time: quadratic residues modulo a prime."""
    index = xp.arange(matrix.shape[0], matrix)
    residues = (index * index * 40503 + index * 26543 + 12345) % 65521
    return xp.like(xp.wide(residues) / 32760.0 - 1.0, matrix)


def _unit(xp: Math, vector: Any, minus_size: Any, tiny: Any) -> tuple[Any, Any, Any]:
    """The direction of a vector divided by `size`, its length, and the product of that and `size`."""
    length = xp.norm(vector)
    stretch = xp.minus(tiny, xp.like(length, tiny), minus_size)
    return vector / stretch, length, stretch


def _largest(xp: Math, diagonal: list[Any], above: list[Any]) -> Any:
    """The largest singular value of a small bidiagonal matrix, without an eigenvalue solver that waits for the device.

    `P = (B^T B)^(2^n)`, normalized, is the projection on the top of the spectrum, and `trace(P B^T B) / trace(P)`
    its eigenvalue.
    """
    steps = len(diagonal)
    row = xp.arange(steps, diagonal[0])[:, None]
    column = xp.arange(steps, diagonal[0])[None, :]
    main = xp.wide(row == column)
    upper = xp.wide(row + 1 == column)
    rows = [xp.stack(part)[:, None] for part in (diagonal, [*above, diagonal[0] * 0.0])]
    bidiagonal = main * rows[0] + upper * rows[1]
    gram = bidiagonal.T @ bidiagonal
    power = gram
    for _ in range(_SQUARINGS):
        power = power / (xp.norm(power) + _TINY)
        power = power @ power
    eigenvalue = xp.sum(power * gram) / _divisor(xp, xp.sum(power * main))
    return xp.sqrt(eigenvalue)


def _divisor(xp: Math, value: Any) -> Any:
    """The value, or 1 instead of 0."""
    return xp.where(value == 0.0, value + 1.0, value)
