"""Arrays as text in a page: bytes of equal weight side by side, deflated, base64."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from msmon.reading.binning import Bits

#: bfloat16's largest finite number; rounding up from above it would give infinity.
_BF16_LARGEST = np.uint32(0x7F7F)


def encode(values: Bits, *, half: bool) -> str:
    """float32 bits as base64 of deflated bytes; `half` keeps the upper 16 bits, rounded: about three digits.

    The lowest bytes of all values come first, then the next ones: like bytes compress better together.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    parts = to_bfloat16(flat).view(np.uint8).reshape(-1, 2) if half else flat.view(np.uint8).reshape(-1, 4)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(parts.T).tobytes(), 6)).decode("ascii")


def to_bfloat16(bits: Bits) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """The nearest bfloat16 of float32 bits; NaN, missing and infinity stay what they are, finite stays finite."""
    finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    sign = rounded & np.uint32(0x8000)
    rounded = np.where((rounded & np.uint32(0x7FFF)) > _BF16_LARGEST, sign | _BF16_LARGEST, rounded)
    return np.asarray(np.where(finite, rounded, bits >> np.uint32(16)), dtype=np.uint16)
