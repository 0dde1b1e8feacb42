"""A whole matrix of numbers as text at once, for callers whose values are numpy arrays.

The same cells as `msmon_io.numbers.format_number` and `format_count` give, character for character, several
times faster and mostly without holding the interpreter's lock, so that formatting does not slow the training thread.
Each cell is put together from table entries of four bytes (digits by threes); unused bytes are NUL and are deleted in
the end. Where scaling by a power of ten could round the wrong way, the cell is formatted by `format_number`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from msmon_io.numbers import format_count, format_number

# Rows formatted at a time: the temporary arrays stay in the processor's cache.
_BLOCK_CELLS = 1 << 13
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
_NAN, _INF, _MINUS_INF = _words(["nan", "inf", "-inf"])


Leading = Sequence["str | NDArray[np.uint32]"]
"""What begins each row: a text that is the same in all of them, or one of `text_words` for each row."""


def text_words(texts: Sequence[str]) -> NDArray[np.uint32]:
    """ASCII or UTF-8 texts without NUL as rows of an array, filled up with NUL bytes to a number of words."""
    encoded = [text.encode() for text in texts]
    words = -(-max(map(len, encoded), default=0) // 4) or 1
    return np.array(encoded, f"S{4 * words}").view(np.uint32).reshape(len(texts), words)


def number_rows(
    values: NDArray[np.float64], is_count: Sequence[bool], ndigits: int, leading: Leading = ()
) -> list[bytes]:
    """The lines of a table, in portions: what is leading, then the cells joined by commas, then the line end.

    Args:
        values: float64 of shape (rows, columns), at least one column.
        is_count: for each column, whether it is written as integers.
        ndigits: see `msmon_io.numbers.format_number`; at most `MAX_BULK_DIGITS`.
        leading: what begins each row.
    """
    values = np.ascontiguousarray(values, np.float64)
    # A healthy run has columns of zeros, the counts of NaN: they become a part of the separators. Not -0.0.
    is_zero: NDArray[np.bool_] = np.logical_not(values.view(np.int64).any(axis=0))
    start, separators = _separators(is_zero, ["0" if count else "0.0" for count in is_count])
    counts = np.array(is_count)
    if is_zero.any():
        values, counts = values[:, ~is_zero], counts[~is_zero]
    pieces = [text_words([piece]) if isinstance(piece, str) else piece for piece in [*leading, start]]
    rows = max(1, _BLOCK_CELLS // max(1, values.shape[1]))
    blocks = []
    for first in range(0, len(values), rows):
        part = slice(first, first + rows)
        block = _block(values[part], counts, ndigits, [p[part] if len(p) > 1 else p for p in pieces], separators)
        blocks.append(block.translate(None, b"\0"))
    return blocks


def _separators(is_zero: NDArray[np.bool_], zeros: Sequence[str]) -> tuple[str, NDArray[np.uint32]]:
    """What goes before the first cell that is not constant, and, as words, after each: the constant cells are in it."""
    between = [""]
    for constant, cell in zip(is_zero.tolist(), zeros, strict=True):
        if constant:
            between[-1] += f"{cell},"
        else:
            between.append(",")
    between[-1] = f"{between[-1][:-1]}\n"
    return between[0], text_words(between[1:])


def _block(
    values: NDArray[np.float64],
    is_count: NDArray[np.bool_],
    ndigits: int,
    leading: Sequence[NDArray[np.uint32]],
    separators: NDArray[np.uint32],
) -> bytes:
    """The rows as text in which NUL bytes have no meaning."""
    begin = sum(piece.shape[1] for piece in leading)
    rows, columns = values.shape
    counts = np.broadcast_to(is_count, values.shape) if is_count.any() else None
    with np.errstate(invalid="ignore", over="ignore"):
        flat_counts = None if counts is None else counts.ravel()
        whole, decimals, exponent, unsafe = _parts(values.ravel(), flat_counts, ndigits)
    whole, decimals, exponent = (part.reshape(values.shape) for part in (whole, decimals, exponent))
    single = {
        (row, column): format_count(values[row, column])
        if is_count[column]
        else format_number(float(values[row, column]), ndigits)
        for row, column in np.argwhere(unsafe.reshape(values.shape)).tolist()
    }
    groups = -(-(ndigits + 3) // 3)
    whole_groups = -(-len(str(whole.max(initial=0))) // 3)
    words = max(whole_groups + groups + 1, -(-max(map(len, single.values()), default=0) // 4))
    line = np.zeros((rows, begin + columns * (words + separators.shape[1])), np.uint32)
    np.concatenate([np.broadcast_to(piece, (rows, piece.shape[1])) for piece in leading], axis=1, out=line[:, :begin])
    out = line[:, begin:].reshape(rows, columns, words + separators.shape[1])
    negative = np.signbit(values)
    _put_whole(out, whole, negative if counts is None else negative & ~counts, whole_groups)
    _put_decimals(out[..., whole_groups:], decimals, exponent != 0, groups)
    if exponent.any():
        out[..., whole_groups + groups] = _EXPONENT[exponent]
    if counts is not None:
        out[:, is_count, whole_groups:] = 0
    _put_special(out, values, words)
    text = out.view(np.uint8)
    for (row, column), cell in single.items():
        out[row, column, :words] = 0
        text[row, column, : len(cell)] = np.frombuffer(cell.encode("ascii"), np.uint8)
    out[..., words:] = separators
    return line.tobytes()


Parts = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def _parts(flat: NDArray[np.float64], counts: NDArray[np.bool_] | None, ndigits: int) -> Parts:
    """Integer part, decimals as an integer of `ndigits` + 3 digits (filled up to threes), negated exponent (0: none),
    and which cells must be formatted one by one."""
    size = np.abs(flat)
    is_small = (size < 1) & (size >= _TINY)
    if counts is not None:
        is_small &= ~counts
    small = np.flatnonzero(is_small)
    small_size = size[small]
    exponent = -np.floor(np.log10(small_size)).astype(np.int64)
    exponent -= small_size >= _SMALL_POWERS[exponent - 1]
    exponent += small_size < _SMALL_POWERS[exponent]
    scale = np.full(size.shape, ndigits)
    scale[small] = ndigits - 1 + exponent
    if counts is not None:
        scale[counts] = 0
    scaled = size * _POWERS[scale]
    rounded = np.rint(scaled)
    # Not-a-number compares false, so the negated forms catch it.
    unsafe = ~(np.abs(np.abs(scaled - rounded) - 0.5) > scaled * _ERROR) | ~(scaled < _LARGEST_SCALED)
    unsafe |= (size < _TINY) & (size > 0)
    if counts is not None:
        unsafe |= counts & (rounded != flat)
    rounded[unsafe] = 0
    unsafe &= np.isfinite(flat)
    integers = rounded.astype(np.int64)

    one = 10**ndigits
    width = -(-(ndigits + 3) // 3) * 3
    whole = integers // one
    decimals = (integers - whole * one) * 10 ** (width - ndigits)
    if counts is not None:
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
        out[..., column] = np.where(is_first, word, np.where(whole >= unit, _FULL[number], 0)) if groups > 1 else word


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
        out[..., column] = _FIRST[number] if column == 0 else _REST[number]


def _put_special(out: NDArray[np.uint32], values: NDArray[np.float64], words: int) -> None:
    special = ~np.isfinite(values)
    if special.any():
        value = values[special]
        out[special, :words] = 0
        out[special, 0] = np.where(np.isnan(value), _NAN, np.where(value > 0, _INF, _MINUS_INF))
