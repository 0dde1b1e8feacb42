"""Histograms over time as a picture: one column a step, the largest bin at the top, brighter is more."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Steps that a picture shows; older ones scroll out.
STEPS = 256
# Width and height of a cell in pixels, so that a few steps of a few bins are more than a speck.
_CELL = 4
# Dark blue, magenta, orange, pale yellow: readable by the colour-blind, monotone in brightness.
_STOPS = ((0, 0, 20), (110, 25, 110), (245, 125, 20), (252, 255, 164))
_LEVELS = 64
# Drawing takes at most this share of the time, and what was saved up for a step in which many pictures are due.
_SHARE, _SAVED_S = 0.02, 0.25
_PALETTE = np.stack(
    [np.interp(np.linspace(0, 3, _LEVELS), range(4), channel) for channel in zip(*_STOPS, strict=True)], axis=1
)
_SAME, _AS_ABOVE = 0, 2
"""How PNG filters a line: not at all; to its difference from the line above."""


def shades(counts: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The colours of histograms, by the logarithm of the share, so that the few elements in the tails are seen.

    Args:
        counts: `[..., bins]`, the smallest bin first.

    Returns:
        Of the same shape: 0 for none, 63 for all elements.
    """
    total = np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    levels: NDArray[np.uint8] = np.rint((_LEVELS - 1) * np.log1p(counts) / np.log1p(total)).astype(np.uint8)
    return levels


class HeatMap:
    """One picture, which gets a column a step.

    To draw it anew at each step would cost more with every column. It is due when a quarter of its columns are new, so
    that all in all a column is drawn some five times.
    """

    def __init__(self) -> None:
        self.step = 0
        """The step of the newest column."""
        self.unseen = 0
        """Columns that are in no picture yet."""
        self._bins = 0
        self._shades = bytearray()

    def add(self, step: int, column: bytes) -> None:
        """Add a column, its shades from the smallest bin on; with other bins than before the picture begins anew."""
        if len(column) != self._bins:
            self._bins, self._shades, self.unseen = len(column), bytearray(), 0
        self._shades += column
        del self._shades[: -STEPS * self._bins]
        self.step = step
        self.unseen += 1

    @property
    def is_due(self) -> bool:
        """Whether it should be drawn again."""
        return 4 * self.unseen * self._bins >= len(self._shades)

    def draw(self) -> tuple[bytes, int, int]:
        """A PNG file of all columns, its width and its height in pixels."""
        self.unseen = 0
        cells = np.frombuffer(bytes(self._shades), np.uint8).reshape(-1, self._bins).T[::-1]
        bins, width = self._bins, _CELL * cells.shape[1]
        lines = np.zeros((bins, _CELL, 1 + width), np.uint8)
        lines[:, 0, 0], lines[:, 1:, 0] = _SAME, _AS_ABOVE
        lines[:, 0, 1:] = cells.repeat(_CELL, axis=1)
        return _png(lines.tobytes(), width, bins * _CELL), width, bins * _CELL


class HeatMaps:
    """All pictures of a run, drawn in turn so that it takes a bounded share of the time."""

    def __init__(self) -> None:
        self._by_name: dict[str, HeatMap] = {}
        self._due: dict[str, HeatMap] = {}
        self._seconds = _SAVED_S
        """What may be spent on drawing."""
        self._asked_at = time.monotonic()

    def add(self, name: str, step: int, column: bytes) -> None:
        """Add a column to the picture of this name; see `HeatMap.add`."""
        heat_map = self._by_name.get(name)
        if heat_map is None:
            heat_map = self._by_name[name] = HeatMap()
        heat_map.add(step, column)
        if heat_map.is_due:
            self._due[name] = heat_map

    def due(self) -> Iterator[tuple[str, HeatMap]]:
        """Those that are to be drawn now, the longest due first; the time until the next one is asked for counts."""
        now = time.monotonic()
        self._seconds = min(self._seconds + _SHARE * (now - self._asked_at), _SAVED_S)
        self._asked_at = now
        while self._due and self._seconds > 0:
            name = next(iter(self._due))
            yield name, self._due.pop(name)
            begin, now = now, time.monotonic()
            self._seconds -= now - begin

    def unseen(self) -> Iterator[tuple[str, HeatMap]]:
        """Those with columns that are in no picture yet."""
        return ((name, heat_map) for name, heat_map in self._by_name.items() if heat_map.unseen)


def _png(lines: bytes, width: int, height: int) -> bytes:
    """A PNG file from lines of 8-bit indices into the palette, each line with its filter in front."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = chunk(b"PLTE", np.rint(_PALETTE).astype(np.uint8).tobytes())
    picture = chunk(b"IDAT", zlib.compress(lines, 1))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + palette + picture + chunk(b"IEND", b"")
