"""Text columns as numbers, so that they fit beside the statistics: fingerprints as bits, shapes as elements."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from msmon.reading.statistics import Floats
from msmon_io import FINGERPRINT

SHAPE = "shape"
"""As a number: how many elements."""

_DIGITS = 16


def numbers_of(column: Any, stat: str) -> tuple[Floats, npt.NDArray[np.bool_] | Literal[True]]:
    """The values of a column, and which of them there are; True: all.

    Args:
        column: a pyarrow column, of numbers unless `stat` is `fingerprint` (16 hexadecimal digits; as a number: the 64
            bits, whatever float64 they look like) or `shape`.
    """
    if stat not in (FINGERPRINT, SHAPE):
        return column.to_numpy(), ~column.is_null().to_numpy() if column.null_count else True
    column = column.combine_chunks()
    convert = _fingerprints if stat == FINGERPRINT else _elements
    if stat == FINGERPRINT and not pa.types.is_dictionary(column.type):
        # Hardly two of them are the same.
        return convert(column.fill_null(""))
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values, known = convert(encoded.dictionary.cast(pa.string()))
    codes = encoded.indices.fill_null(len(values)).to_numpy().astype(np.int64)
    return np.append(values, np.nan)[codes], np.append(known, False)[codes]


def _fingerprints(texts: pa.Array) -> tuple[Floats, npt.NDArray[np.bool_]]:
    whole = np.asarray(pc.equal(pc.binary_length(texts), _DIGITS).to_numpy(zero_copy_only=False))
    values = np.zeros(len(texts), np.uint64)
    if whole.any():
        chosen = texts if whole.all() else texts.filter(pa.array(whole))
        # An array may be a part of another one.
        _, places, text = chosen.buffers()
        begin = int(np.frombuffer(places, np.int32, 1, 4 * chosen.offset)[0])
        digits = np.frombuffer(text, np.uint8, _DIGITS * len(chosen), begin).reshape(-1, _DIGITS)
        nibbles = (digits & 15) + 9 * (digits >> 6)
        values[whole] = ((nibbles[:, ::2] << 4) | nibbles[:, 1::2]).view(">u8")[:, 0]
    return values.view(np.float64), whole


def _elements(texts: pa.Array) -> tuple[Floats, npt.NDArray[np.bool_]]:
    values = np.array([_numel(text) for text in texts.to_pylist()], np.float64)
    return values, ~np.isnan(values)


def _numel(text: str) -> float:
    """
    >>> _numel("[2, 3]"), _numel("[]"), _numel("?")
    (6.0, 1.0, nan)
    """
    try:
        return float(math.prod(int(size) for size in text.strip("[]() ").split(",") if size.strip()))
    except ValueError:
        return math.nan
