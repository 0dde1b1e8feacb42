"""The fingerprint of a tensor: 64 bits of what it holds, the same wherever and however it is read.

The content is the bytes of the elements in row-major order, in little-endian words of 4 bytes; what is free of the last
word is 0. Before it goes a word that is the number of elements. The fingerprint is `sum(word[k] * BASE**k) % 2**64`.

It is a sum, so parts that begin at a whole word may be read in any order, by any number of threads, and be joined. What
is always seen: a change in one word, since it is smaller than 2^32 and the power odd; the flip of the same bit of two
elements, which cancel only where two powers are alike in 33 bits, and that they are in no 2^31 words; the number of
zeros, where there is nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msmon_stats.fields import COUNT, HIGH, LOW, WIDE

BASE = 6364136223846793005
"""5 modulo 8, so that its powers repeat after 2^62; Knuth's multiplier for random numbers."""

WORD = 4
"""Bytes."""

_WORDS = 1 << 64


def power(exponent: int) -> int:
    """`BASE**exponent`, modulo 2^64."""
    return pow(BASE, exponent, _WORDS)


def powers(count: int, step: int = 1) -> NDArray[np.uint64]:
    """The first powers of `BASE**step`, beginning with 1."""
    found = np.full(count, power(step), np.uint64)
    found[:1] = 1
    return np.multiply.accumulate(found)


def element_powers(count: int, itemsize: int) -> NDArray[np.uint64]:
    """What the bits of each element of a run are multiplied by: its word's power, and its place in the word.

    Elements of 8 bytes are two words, of which this is the power of the first.
    """
    first = np.arange(count) * itemsize
    return powers(int(first[-1]) // WORD + 1)[first // WORD] << (8 * (first % WORD)).astype(np.uint64)


def signed(number: int) -> int:
    """The same 64 bits as a number with a sign."""
    return (number + (1 << 63)) % _WORDS - (1 << 63)


def to_fields(content: int | None) -> tuple[float, float]:
    """The two columns of a row.

    Args:
        content: the sum over the words of the content, of which the first counts once. None: there is no fingerprint.

    Columns of parts of one tensor add up, if what comes before a part is counted in its powers: float64 has 53 bits.
    """
    if content is None:
        return np.nan, np.nan
    return float(content & 0xFFFFFFFF), float(content >> 32 & 0xFFFFFFFF)


def sum_of_words(content: NDArray[np.uint8]) -> int:
    """Over words in one run of memory, by numpy."""
    padded = np.zeros(-(-len(content) // WORD) * WORD, np.uint8)
    padded[: len(content)] = content
    words = padded.view("<u4").astype(np.uint64)
    return int((words * powers(len(words))).sum())


def in_whole_words(pieces: Iterable[Any], elements: int, join: Callable[[Any], Any]) -> Iterator[Any]:
    """Runs of elements, cut anew so that each but the last fills whole words.

    Args:
        pieces: of one dimension.
        elements: so many fill whole words.
        join: makes one run of several.
    """
    rest = None
    for piece in pieces:
        run = piece if rest is None else join((rest, piece))
        whole = len(run) - len(run) % elements
        if whole:
            yield run[:whole]
        # A copy: the next piece may take the memory of this one.
        rest = join((run[whole:],)) if whole < len(run) else None
    if rest is not None:
        yield rest


def fingerprints(matrix: NDArray[np.float64]) -> list[str]:
    """The fingerprints in rows of partials, in 16 hexadecimal digits; empty where there is none.

    Args:
        matrix: float64 `[n, 10]`, as `msmon_stats.partial_many(..., fingerprint=True)` gives on the host.

    Raises:
        ValueError: a matrix of another shape.

    >>> import numpy as np
    >>> from msmon_stats import partial_many
    >>> fingerprints(partial_many([np.zeros(2), np.zeros(3), np.arange(3)], fingerprint=True))
    ['0000000000000002', '0000000000000003', 'dddebd2b9edad8f2']
    """
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[1] != WIDE:
        raise ValueError(f"partials with fingerprints have the shape [n, {WIDE}], not {list(matrix.shape)}")
    there = ~np.isnan(matrix[:, LOW])
    count, low, high = (np.where(there, matrix[:, column], 0).astype(np.uint64) for column in (COUNT, LOW, HIGH))
    found = count + np.uint64(BASE) * (low + (high << np.uint64(32)))
    return [f"{number:016x}" if known else "" for number, known in zip(found.tolist(), there.tolist(), strict=True)]
