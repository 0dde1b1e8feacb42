"""Reading the values of a numpy array as runs of plain numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from msmon_stats.choice import KERNEL_DTYPES
from msmon_stats.fingerprint import WORD, in_whole_words
from msmon_stats.layout import layout_of

Array = NDArray[Any]

# A piece that has to be converted or gathered is copied into some hundred KiB, whatever the size of the array.
PIECE = 1 << 16

_NUMBER_KINDS = "biufc"
# The low-precision types that ml_dtypes, MindSpore and others register with numpy under their own kinds.
_REGISTERED = ("bfloat16", "float8", "float4")


@frozen(kw_only=True)
class Reading:
    """The stored values of an array as contiguous pieces of one native dtype."""

    pieces: Iterator[Array]
    times: int
    """How often each stored value occurs (axes of stride 0)."""


def unsupported_reason(array: Any) -> str | None:
    """See `msmon_stats.unsupported_reason`."""
    dtype = array.dtype
    if dtype.kind in _NUMBER_KINDS or dtype.name.startswith(_REGISTERED):
        return None
    return f"values of dtype {dtype.name} are not numbers"


def kernel_dtype(dtype: np.dtype[Any]) -> str | None:
    """The name under which the kernels know a dtype; None if its values have to be converted first."""
    if not dtype.isnative:
        return None
    name = dtype.name
    return "uint8" if name == "bool" else name if name in KERNEL_DTYPES else None


def read(array: Array) -> Reading:
    """The values of an array that is not empty.

    Values whose dtype no kernel knows are converted: complex numbers to their absolute value, low-precision types other
    than bfloat16 to float32 (exactly), extended precision to float64.
    """
    array = array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)]
    layout = layout_of(array.shape, [stride / array.itemsize for stride in array.strides])
    kept = sorted(layout.axes)
    array = array[tuple(slice(None) if axis in kept else 0 for axis in range(array.ndim))]
    array = np.asarray(array).transpose([kept.index(axis) for axis in layout.axes])
    plain = kernel_dtype(array.dtype) is not None
    if layout.dense and plain and array.flags.aligned:
        return Reading(pieces=iter((array.reshape(-1),)), times=layout.times)
    return Reading(pieces=_copied(array), times=layout.times)


def in_order(array: Array) -> Iterator[Array]:
    """All elements in the order of the content, as contiguous pieces that fill whole words of the fingerprint, in the
    byte order of words."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return iter((array.reshape(-1),))
    return in_whole_words(_gathered(array), max(1, WORD // array.itemsize), np.concatenate)


def _copied(array: Array) -> Iterator[Array]:
    return map(_converted, _gathered(array))


def _gathered(array: Array) -> Iterator[Array]:
    if array.size == 0:
        return
    if array.ndim == 0:
        yield array.reshape(1).astype(array.dtype.newbyteorder("="))
        return
    native = array.dtype.newbyteorder("=")
    chunks = np.nditer(
        [array],
        ["external_loop", "buffered"],
        [["readonly", "aligned"]],
        [native],
        order="C",
        casting="equiv",
        buffersize=PIECE,
    )
    for chunk in chunks:
        # The iterator may reuse its buffer or hand out a piece with gaps.
        yield np.ascontiguousarray(chunk)


def _converted(chunk: Array) -> Array:
    if chunk.dtype.kind == "c":
        chunk = np.abs(chunk)
    if kernel_dtype(chunk.dtype) is None:
        chunk = chunk.astype(np.float32 if chunk.dtype.itemsize < 4 else np.float64)
    return chunk
