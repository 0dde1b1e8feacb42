"""The layout of a vector of sufficient statistics, shared by every back end."""

from __future__ import annotations

FIELDS = ("count", "nans", "infs", "zeros", "min", "max", "sum", "sumsq")
"""Columns of one row of partials, all float64. `min`, `max`, `sum` and `sumsq` are over the values that are not
NaN; without such a value `min` is +inf and `max` is -inf. `zeros` counts the elements with `abs(x) < eps`."""

OPS = ("min", "max", "mean", "norm", "zeros", "nans", "std", "rms", "absmax", "infs")
"""Statistics that `msmon_stats.finalize` derives from a row of `FIELDS`."""

WIDTH = len(FIELDS)
COUNT, NANS, INFS, ZEROS, MIN, MAX, SUM, SUMSQ = range(WIDTH)

WIDE = WIDTH + 2
LOW, HIGH = range(WIDTH, WIDE)
"""Two more columns of rows that have a fingerprint; see `msmon_stats.fingerprint`."""

DEFAULT_EPS = 1e-8
