"""How a number is written: `ndigits` decimals from 1 on, `ndigits` significant digits below."""

from __future__ import annotations

from collections.abc import Sequence

COUNT_OPS = frozenset({"nans", "infs"})
"""Columns that are counts and so are written as integers."""

MAX_BULK_DIGITS = 13
"""Up to here `msmon_io.bulk_numbers` has enough spare bits to see whether rounding is safe."""

# 17 significant digits tell every float64 apart; asking for more would print the binary representation's noise.
_ROUND_TRIP_DIGITS = 17


def format_number(value: float, ndigits: int) -> str:
    """One cell: as Python writes a float, after rounding.

    A value of at least 1 is rounded to `ndigits` decimals, a smaller one to `ndigits` significant digits, so
    that no small value is ever written as 0. Trailing zeros are dropped, up to the first decimal.

    >>> [format_number(x, 6) for x in (0.0, 1.0, -1.23456789e-9, 1234.56789012, 1e20, float("-inf"), float("nan"))]
    ['0.0', '1.0', '-1.23457e-09', '1234.56789', '1e+20', '-inf', 'nan']
    """
    if -1.0 < value < 1.0:
        return repr(float(f"{value:.{ndigits}g}")) if ndigits < _ROUND_TRIP_DIGITS else repr(float(value))
    return repr(round(float(value), ndigits))


def format_count(value: float) -> str:
    """A count: an integer where it is one (`nan` stays `nan`).

    >>> format_count(3.0), format_count(float("nan"))
    ('3', 'nan')
    """
    return str(int(value)) if abs(value) < 2**53 and value == int(value) else repr(float(value))


def format_column(values: Sequence[float], op: str, ndigits: int) -> list[str]:
    """The cells of one column."""
    if op in COUNT_OPS:
        return ["0" if value == 0 else format_count(value) for value in values]
    # With 2 to 15 digits `format` gives the same text as the way over `repr`, sooner; it wants floats, not integers.
    if 1 < ndigits <= 15 and all(type(value) is float for value in values):
        spec = f".{ndigits}"
        return [format(value, spec) if -1.0 < value < 1.0 else format_number(value, ndigits) for value in values]
    return [format_number(value, ndigits) for value in values]
