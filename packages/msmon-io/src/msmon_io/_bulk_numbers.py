"""A whole matrix of numbers as text at once, for callers whose values are numpy arrays.

The same cells as :func:`msmon_io._numbers.format_number` and ``format_count`` give, character for character, several
times faster and mostly without holding the interpreter's lock, so that formatting does not slow the training thread.
Each cell is put together from table entries of four bytes (digits by threes); unused bytes are NUL and are deleted in
the end. Where scaling by a power of ten could round the wrong way, the cell is formatted by ``format_number``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from msmon_io._numbers import format_count, format_number

MAX_DIGITS = 13
"""Up to here scaled values keep enough spare bits to see whether rounding is safe."""

# Rows formatted at a time: the temporary arrays stay in the processor's cache.
_BLOCK_CELLS = 1 << 14
# `repr` of a float64 has at most 24 characters; a cell must have room for it.
_MIN_WORDS = 6
# Below this the exponent has three digits; rare enough for the slow path.
_TINY = 1e-99
_LARGEST_SCALED = 2.0**50
# A scaled value is off by at most two roundings, 2**-52 of itself; twice that to be safe.
_ERROR = 2.0**-51

_POWERS = np.array([float(f"1e{exponent}") for exponent in range(113)])
_SMALL_POWERS = np.array([float(f"1e{-exponent}") for exponent in range(101)])
_INT_POWERS = 10 ** np.arange(19, dtype=np.int64)


def _words(texts: Sequence[str]) -> NDArray[np.uint32]:
    return np.frombuffer(b"".join(text.encode().ljust(4, b"\0") for text in texts), np.uint32)


_THREE = [f"{number:03}" for number in range(1000)]
_SHORT = [text.rstrip("0") for text in _THREE]
# First digits of the integer part, after the sign: index + 1000 if negative.
_LEADING = _words([f"{sign}{number}" for sign in ("", "-") for number in range(1000)])
_FULL = _words(_THREE)
# The first decimals: index + 1000 if only zeros follow (one decimal is kept), + 2000 if then none is kept.
_FIRST = _words([f".{x}" for x in _THREE] + [f".{x or 0}" for x in _SHORT] + [f".{x}" if x else "" for x in _SHORT])
# Further decimals: index + 1000 if only zeros follow.
_REST = _words(_THREE + _SHORT)
_EXPONENT = _words([""] + [f"e-{exponent:02}" for exponent in range(1, 100)])
_COMMA, _NEWLINE = _words([",", "\n"])
_NAN, _INF, _MINUS_INF = _words(["nan", "inf", "-inf"])


def number_lines(values: NDArray[np.float64], is_count: Sequence[bool], ndigits: int) -> list[str]:
    """The cells of each row, joined by commas.

    Args:
        values: float64 of shape (rows, columns), at least one column.
        is_count: for each column, whether it is written as integers.
        ndigits: see :func:`msmon_io._numbers.format_number`; at most :data:`MAX_DIGITS`.
    """
    rows = max(1, _BLOCK_CELLS // values.shape[1])
    blocks = [_block(values[i : i + rows], np.array(is_count), ndigits) for i in range(0, len(values), rows)]
    return b"".join(blocks).decode("ascii").split("\n")[:-1]


def _block(values: NDArray[np.float64], is_count: NDArray[np.bool_], ndigits: int) -> bytes:
    rows, columns = values.shape
    flat = np.ascontiguousarray(values, np.float64).ravel()
    counts = np.broadcast_to(is_count, values.shape).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        whole, decimals, exponent, unsafe = _parts(flat, counts, ndigits)
    groups = -(-(ndigits + 3) // 3)
    leading = max(1, -(-len(str(whole.max(initial=0))) // 3))
    words = max(leading + groups + 1, _MIN_WORDS)
    out = np.zeros((flat.size, words + 1), np.uint32)
    _put_whole(out, whole, np.signbit(flat) & ~counts, leading)
    _put_decimals(out[:, leading:], decimals, exponent != 0, groups)
    out[:, leading + groups] = _EXPONENT[exponent]
    out[counts, leading : leading + groups + 1] = 0
    _put_special(out, flat, words)
    text = out.view(np.uint8)
    for i in np.flatnonzero(unsafe).tolist():
        cell = format_count(flat[i]) if counts[i] else format_number(float(flat[i]), ndigits)
        out[i, :words] = 0
        text[i, : len(cell)] = np.frombuffer(cell.encode("ascii"), np.uint8)
    separators = out[:, words].reshape(rows, columns)
    separators[:] = _COMMA
    separators[:, -1] = _NEWLINE
    return out.tobytes().translate(None, b"\0")


Parts = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def _parts(flat: NDArray[np.float64], counts: NDArray[np.bool_], ndigits: int) -> Parts:
    """Integer part, decimals as an integer of ``ndigits`` + 3 digits (filled up to threes), negated exponent (0: none),
    and which cells must be formatted one by one."""
    size = np.abs(flat)
    small = np.flatnonzero((size < 1) & (size >= _TINY) & ~counts)
    small_size = size[small]
    exponent = -np.floor(np.log10(small_size)).astype(np.int64)
    exponent -= small_size >= _SMALL_POWERS[exponent - 1]
    exponent += small_size < _SMALL_POWERS[exponent]
    scale = np.full(size.shape, ndigits)
    scale[small] = ndigits - 1 + exponent
    scale[counts] = 0
    scaled = size * _POWERS[scale]
    rounded = np.rint(scaled)
    # Not-a-number compares false, so the negated forms catch it.
    unsafe = ~(np.abs(np.abs(scaled - rounded) - 0.5) > scaled * _ERROR) | ~(scaled < _LARGEST_SCALED)
    unsafe |= (size < _TINY) & (size > 0)
    unsafe |= counts & (rounded != flat)
    rounded[unsafe] = 0
    unsafe &= np.isfinite(flat)
    integers = rounded.astype(np.int64)

    one = 10**ndigits
    width = -(-(ndigits + 3) // 3) * 3
    whole = integers // one
    decimals = (integers - whole * one) * 10 ** (width - ndigits)
    whole[counts] = integers[counts]
    digits = integers[small]
    carried = digits == one
    exponent -= carried
    digits[carried] = one // 10
    is_fixed = exponent <= 4
    shift = np.where(is_fixed, width - ndigits - exponent + 1, 0)
    first = digits // (one // 10)
    fraction = (digits - first * (one // 10)) * 10 ** (width - ndigits + 1)
    decimals[small] = np.where(is_fixed, digits * _INT_POWERS[shift], fraction)
    whole[small] = np.where(is_fixed, 0, first)
    is_one = small[exponent == 0]
    whole[is_one], decimals[is_one] = 1, 0
    negated = np.zeros(size.shape, np.int64)
    negated[small] = np.where(is_fixed, 0, exponent)
    return whole, decimals, negated, unsafe


def _put_whole(out: NDArray[np.uint32], whole: NDArray[np.int64], negative: NDArray[np.bool_], groups: int) -> None:
    rest = whole
    for column in range(groups):
        unit = 1000 ** (groups - 1 - column)
        number = rest // unit
        rest = rest - number * unit
        is_first = (whole < unit * 1000) & ((whole >= unit) | (unit == 1))
        word = _LEADING[number + 1000 * negative]
        out[:, column] = np.where(is_first, word, np.where(whole >= unit, _FULL[number], 0)) if groups > 1 else word


def _put_decimals(
    out: NDArray[np.uint32], decimals: NDArray[np.int64], has_exponent: NDArray[np.bool_], groups: int
) -> None:
    rest = decimals
    for column in range(groups):
        unit = 1000 ** (groups - 1 - column)
        number = rest // unit
        rest = rest - number * unit
        number += 1000 * (rest == 0)
        if column == 0:
            number += 1000 * ((rest == 0) & has_exponent)
        out[:, column] = _FIRST[number] if column == 0 else _REST[number]


def _put_special(out: NDArray[np.uint32], flat: NDArray[np.float64], words: int) -> None:
    special = np.flatnonzero(~np.isfinite(flat))
    if special.size:
        value = flat[special]
        out[special, :words] = 0
        out[special, 0] = np.where(np.isnan(value), _NAN, np.where(value > 0, _INF, _MINUS_INF))
