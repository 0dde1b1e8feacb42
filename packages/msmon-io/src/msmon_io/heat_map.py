"""Histograms over time as a picture: one column a step, the largest bin at the top, brighter is more."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

# Width and height of a cell in pixels, so that a few steps of a few bins are more than a speck.
_CELL = 8
# Dark blue, magenta, orange, pale yellow: readable by the colour-blind, monotone in brightness.
_STOPS = ((0, 0, 20), (110, 25, 110), (245, 125, 20), (252, 255, 164))


def _colour(share: float) -> bytes:
    position = share * (len(_STOPS) - 1)
    index = min(int(position), len(_STOPS) - 2)
    part = position - index
    return bytes(round(a + (b - a) * part) for a, b in zip(_STOPS[index], _STOPS[index + 1], strict=True))


_COLOURS = [_colour(level / 255) for level in range(256)]


def heat_map(columns: Sequence[Sequence[float]]) -> tuple[bytes, int, int]:
    """Draw the histograms side by side.

    Colours are by the logarithm of the share of its column, so that the few elements in the tails are seen.

    Args:
        columns: one histogram a step, each with the same number of bins.

    Returns:
        A PNG file, its width and its height in pixels.
    """
    shades = []
    for counts in columns:
        total = sum(counts) or 1
        floor = math.log1p(total)
        shades.append([_COLOURS[round(255 * math.log1p(count) / floor)] for count in counts])
    lines = []
    for bin_index in reversed(range(len(columns[0]))):
        line = b"\0" + b"".join(column[bin_index] * _CELL for column in shades)
        lines.append(line * _CELL)
    width, height = len(columns) * _CELL, len(columns[0]) * _CELL
    return encode_png(b"".join(lines), width, height), width, height


def encode_png(lines: bytes, width: int, height: int) -> bytes:
    """A PNG file from lines of 8-bit RGB pixels, each line with its filter byte 0 in front."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    picture = chunk(b"IDAT", zlib.compress(lines, 6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + picture + chunk(b"IEND", b"")
