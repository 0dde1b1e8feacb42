"""From rows of sufficient statistics to the statistics that users read. Host side, numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from msmon_stats.fields import COUNT, INFS, MAX, MIN, NANS, OPS, SUM, SUMSQ, WIDE, WIDTH, ZEROS

Matrix = NDArray[np.float64]


def finalize(matrix: Matrix, ops: Sequence[str] = OPS) -> Matrix:
    """Derive statistics from rows of partials.

    Args:
        matrix: float64 `[n, 8]`, columns `msmon_stats.FIELDS`; or `[n, 10]`, whose fingerprints
            `msmon_stats.fingerprints` reads.
        ops: names out of `msmon_stats.OPS`, in the order of the wanted columns.

    Returns:
        float64 `[n, len(ops)]`.

        * `zeros` is a share of the elements, `nans` and `infs` are counts.
        * `std` divides by `count - 1` and is nan for fewer than two elements.
        * A row with any NaN has nan for min, max, mean, norm, std, rms and absmax.
        * A row with an infinite value has an infinite norm and rms, and a std of nan.
        * An empty tensor (count 0) has norm 0 and counts 0, and nan for everything else.

    Raises:
        ValueError: an unknown name in `ops`, or a matrix of another shape.

    >>> import numpy as np
    >>> from msmon_stats import finalize, partial
    >>> finalize(partial(np.array([3.0, -4.0]))[None], ["norm", "mean"]).tolist()
    [[5.0, -0.5]]
    """
    unknown = [op for op in ops if op not in _FORMULAS]
    if unknown:
        raise ValueError(f"unknown statistics {unknown}; known are {', '.join(OPS)}")
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] not in (WIDTH, WIDE):
        raise ValueError(f"partials must have the shape [n, {WIDTH}], not {list(matrix.shape)}")
    result = np.empty((len(matrix), len(ops)))
    with np.errstate(all="ignore"):
        for column, op in enumerate(ops):
            result[:, column] = _FORMULAS[op](matrix)
    return result


def _unless_nan(matrix: Matrix, values: Matrix) -> Matrix:
    return np.where(matrix[:, NANS] > 0, np.nan, values)


def _unless_empty(matrix: Matrix, values: Matrix) -> Matrix:
    return np.where(matrix[:, COUNT] > 0, _unless_nan(matrix, values), np.nan)


def _std(matrix: Matrix) -> Matrix:
    count = matrix[:, COUNT]
    # A sum of squares that lies below the square of the sum by rounding only is a variance of 0.
    variance = np.maximum(matrix[:, SUMSQ] - matrix[:, SUM] * (matrix[:, SUM] / count), 0.0) / (count - 1)
    return np.where(count > 1, _unless_nan(matrix, np.sqrt(variance)), np.nan)


def _absmax(matrix: Matrix) -> Matrix:
    return _unless_empty(matrix, np.maximum(np.abs(matrix[:, MIN]), np.abs(matrix[:, MAX])))


_FORMULAS: dict[str, Callable[[Matrix], Matrix]] = {
    "min": lambda m: _unless_empty(m, m[:, MIN]),
    "max": lambda m: _unless_empty(m, m[:, MAX]),
    "mean": lambda m: _unless_empty(m, m[:, SUM] / m[:, COUNT]),
    "norm": lambda m: _unless_nan(m, np.sqrt(m[:, SUMSQ])),
    "zeros": lambda m: _unless_empty_count(m),
    "nans": lambda m: m[:, NANS],
    "std": _std,
    "rms": lambda m: _unless_empty(m, np.sqrt(m[:, SUMSQ] / m[:, COUNT])),
    "absmax": _absmax,
    "infs": lambda m: m[:, INFS],
}


def _unless_empty_count(matrix: Matrix) -> Matrix:
    return np.where(matrix[:, COUNT] > 0, matrix[:, ZEROS] / matrix[:, COUNT], np.nan)
