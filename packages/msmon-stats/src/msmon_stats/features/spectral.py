"""The largest singular value of a matrix, and how many directions it has."""

from __future__ import annotations

from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.features.math import Math

STEPS = 32
"""Lanczos steps. Their error does not depend on the gap between the first two singular values: it shrinks with the
square of the number of steps even without one (Kuczynski and Wozniakowski 1992), where plain power iteration needs
thousands."""

_SQUARINGS = 16

# Of the Frobenius norm: what single precision leaves of a difference that is 0.
_NOISE = 3e-8


def linear_features(weight: Any) -> Any:
    """Stable rank and spectral norm of a matrix.

    The spectral norm comes from Golub-Kahan-Lanczos bidiagonalization (Golub and Kahan 1965) from a fixed start, with
    full reorthogonalization: the matrix is multiplied with vectors only, and no random number is drawn.

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
        frobenius = xp.sqrt(sum(xp.sum(xp.wide(part) * xp.wide(part)) for (part,) in xp.chunks(matrix)))
        largest = _largest(xp, *_bidiagonal(xp, matrix, min(STEPS, *matrix.shape), frobenius * _NOISE), frobenius)
        return xp.stack([frobenius / largest, largest])


def _bidiagonal(xp: Math, matrix: Any, steps: int, floor: Any) -> tuple[list[Any], list[Any]]:
    """Diagonal and superdiagonal of the bidiagonal matrix that approximates the top of the spectrum."""
    transposed = matrix.T
    left, _ = _unit(xp, _start(xp, matrix), floor * 0.0)
    # The first right vector lies in the row space, so no step is spent on what the matrix maps to 0.
    right, _ = _unit(xp, transposed @ left, floor)
    basis = [right]
    left, alpha = _unit(xp, matrix @ right, floor)
    diagonal, above = [alpha], []
    for _ in range(steps - 1):
        right = transposed @ left - xp.like(alpha, right) * right
        known = xp.stack(basis)
        for _ in range(2):
            right = right - known.T @ (known @ right)
        right, beta = _unit(xp, right, floor)
        basis.append(right)
        left, alpha = _unit(xp, matrix @ right - xp.like(beta, left) * left, floor)
        diagonal.append(alpha)
        above.append(beta)
    return diagonal, above


def _start(xp: Math, matrix: Any) -> Any:
    """A vector that looks random and is the same every time: quadratic residues modulo a prime."""
    index = xp.arange(matrix.shape[0], matrix)
    residues = (index * index * 40503 + index * 26543 + 12345) % 65521
    return xp.like(xp.wide(residues) / 32760.0 - 1.0, matrix)


def _unit(xp: Math, vector: Any, floor: Any) -> tuple[Any, Any]:
    """The direction of a vector, and its length.

    A vector that is not longer than `floor` is what rounding left of nothing: it and its length become 0, and with
    them everything that follows. The steps before have found all that the start can reach.
    """
    length = xp.norm(vector)
    length = length * xp.wide(length > floor)
    narrow = xp.like(length, vector)
    return vector * xp.like(length > floor, vector) / _divisor(xp, narrow), length


def _largest(xp: Math, diagonal: list[Any], above: list[Any], scale: Any) -> Any:
    """The largest singular value of a small bidiagonal matrix, without an eigenvalue solver that waits for the device.

    `P = (B^T B)^(2^n)`, normalized, is the projection on the top of the spectrum, and `trace(P B^T B) / trace(P)`
    its eigenvalue.
    """
    steps = len(diagonal)
    # Divided by the Frobenius norm nothing can overflow; that of a matrix of zeros is replaced.
    unit = _divisor(xp, scale)
    row = xp.arange(steps, scale)[:, None]
    column = xp.arange(steps, scale)[None, :]
    main = xp.wide(row == column)
    upper = xp.wide(row + 1 == column)
    rows = [(xp.stack(part) / unit)[:, None] for part in (diagonal, [*above, scale * 0.0])]
    bidiagonal = main * rows[0] + upper * rows[1]
    gram = bidiagonal.T @ bidiagonal
    power = gram
    for _ in range(_SQUARINGS):
        trace = xp.sum(power * main)
        power = power / _divisor(xp, trace)
        power = power @ power
    trace = xp.sum(power * main)
    eigenvalue = xp.sum(power * gram) / _divisor(xp, trace)
    return xp.sqrt(eigenvalue) * scale


def _divisor(xp: Math, value: Any) -> Any:
    """The value, or 1 instead of 0."""
    return xp.where(value == 0.0, value + 1.0, value)
