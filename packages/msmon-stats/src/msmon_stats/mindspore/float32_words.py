"""Fingerprints on an accelerator: sums over the words of rows by MindSpore's own operators, in int64.

What is left of a row is one number of 8 bytes, of which the host makes the sums of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint

from msmon_stats.fingerprint import WORD, powers
from msmon_stats.float32 import ROW, WordRows
from msmon_stats.mindspore.float32_work import Run

_MEMORY = 24
"""Bytes that a word takes while it is read: itself as two numbers of 8 bytes, and a product."""


class Words:
    """Copies the bits of tensors behind one another into rows, and sums the words of many together.

    Args:
        size: of the memory that this may take, in bytes.
        carry: takes flat float32 numbers, and gives their place.
    """

    def __init__(self, size: int, carry: Callable[[Any], int]) -> None:
        self._limit = max(1, size // _MEMORY // (2 * ROW))
        self._carry = carry
        self._powers = Tensor(powers(2 * ROW).view(np.int64))
        # They have no sign.
        self._half = Tensor(0xFFFFFFFF, mindspore.int64)
        self._zeros: dict[Any, Any] = {}
        self._before: dict[int, int] = {}
        """Words of each tensor that were read."""
        self.done: list[WordRows] = []
        """What was read, and the place of its numbers."""

    def add(self, runs: Sequence[Run]) -> None:
        """Read tensors of one dtype and one dimension."""
        batch: list[Run] = []
        free = self._limit
        for handle, values in runs:
            start, size = 0, values.shape[0]
            while start < size:
                length = min(size - start, free * ROW)
                batch.append((handle, values if length == size else mint.narrow(values, 0, start, length)))
                start += length
                free -= -(-length // ROW)
                if not free:
                    self._read(batch)
                    batch, free = [], self._limit
        if batch:
            self._read(batch)

    def _read(self, batch: Sequence[Run]) -> None:
        parts = []
        for _, values in batch:
            parts.append(values)
            if values.shape[0] % ROW:
                parts.append(mint.narrow(self._padding(values.dtype), 0, 0, ROW - values.shape[0] % ROW))
        itemsize = parts[0].itemsize
        # A copy begins at a word.
        rows = parts[0] if len(parts) == 1 and itemsize >= WORD else mint.cat(tuple(parts))
        words = rows.view(mindspore.int32).reshape(-1, ROW * itemsize // WORD).astype(mindspore.int64)
        products = mint.mul(mint.bitwise_and(words, self._half), mint.narrow(self._powers, 0, 0, words.shape[1]))
        place = self._carry(_sums(products).view(mindspore.float32))
        read, before = [(handle, values.shape[0]) for handle, values in batch], []
        for handle, size in read:
            before.append(self._before.get(handle, 0))
            self._before[handle] = before[-1] + size * itemsize // WORD
        self.done.append(WordRows(place=place, runs=read, before=before, itemsize=itemsize, padding=0))

    def _padding(self, dtype: Any) -> Any:
        if dtype not in self._zeros:
            self._zeros[dtype] = Tensor(np.zeros(ROW, np.float32)).astype(dtype)
        return self._zeros[dtype]

    def forget(self) -> None:
        """The step is over."""
        self._before, self.done = {}, []


def _sums(products: Any) -> Any:
    """Over each row, modulo 2^64. `mint.sum` adds whole numbers as float64 on a CPU, so halves are added."""
    while products.shape[1] > 1:
        half = products.shape[1] // 2
        products = mint.add(mint.narrow(products, 1, 0, half), mint.narrow(products, 1, half, half))
    return products.reshape(-1)
