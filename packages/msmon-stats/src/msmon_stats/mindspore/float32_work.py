"""Rows of float32 statistics by MindSpore's own operators, in float32, bool and int32: many tensors share each launch.

None of them takes or gives float64, and each exists for Ascend: of every operator `X` that is called here MindSpore's
package brings a class `XAscend`, in `lib/plugin/libmindspore_ops_ascend.so`. `mint.stack` and `mint.clone` have one,
too, but none for a CPU, where the tests run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint
from numpy.typing import NDArray

from msmon_stats.float32 import EXPONENT, LEAST_SCALE, PARTS, ROW, STEP, SUMS, Plan

LEFT = 14
"""Numbers that they leave of a row: see `for_merge`."""

_BOUNDS = 5
# float32 numbers of memory that reading takes for each value: itself, its multiple, the difference from the mean with
# and without the padding, its square, and a byte for each bound.
_MEMORY = 5 + _BOUNDS / 4

_LARGEST = float(np.finfo(np.float32).max)

Run = tuple[int, Any]
"""A handle, and values of it in one run of memory."""


def bounds(limit: float) -> list[float]:
    """What the values of a row are compared with, to count what lies below `limit` on both sides, and Inf and NaN."""
    below = float(np.nextafter(np.float32(-limit), np.float32(0.0)))
    return [limit, below, math.inf, -_LARGEST, -math.inf]


@functools.cache
def flushes_denormals() -> bool:
    """Whether comparisons take denormal numbers for 0, as they do on some processors. Waits for the device, once."""
    many = Tensor(np.zeros(ROW, np.float32))  # a few would be compared by other instructions
    return not bool(mint.lt(many, Tensor([float(np.nextafter(np.float32(0), np.float32(1)))])).all())


class Work:
    """Copies tensors behind one another into rows, and reads many of them together. Long ones in float32 are read where
    they lie.

    Args:
        size: of the memory that this may take, in bytes.
        leave: takes what reading leaves of the rows of a plan, as flat float32 tensors.
    """

    def __init__(self, size: int, leave: Callable[[Plan, Sequence[Any]], None]) -> None:
        self.row_limit = max(1, int(size / (4 * ROW * _MEMORY)))
        self._leave = leave
        self._zero, self._infinity, self._lowest = (
            Tensor(number, mindspore.float32) for number in (0.0, math.inf, -math.inf)
        )
        self._exponent = Tensor(EXPONENT, mindspore.int32)
        self._padding: dict[Any, Any] = {}
        self.bounds: Any = None
        """Those of `bounds`, float32 `[5, 1, 1]`."""
        self._plan = Plan()
        self._waiting: list[Any] = []

    def add(self, dtype: Any, runs: Sequence[Run]) -> None:
        """Read tensors of one of the dtypes float32, bfloat16 and float16."""
        batch: list[Run] = []
        free = self.row_limit - self._plan.row_count
        whole = self.row_limit * ROW
        for handle, values in runs:
            start, size = 0, values.shape[0]
            while dtype == mindspore.float32 and size - start >= whole:
                self._read_in_place(handle, mint.narrow(values, 0, start, whole))
                start += whole
            while start < size:
                length = min(size - start, free * ROW)
                batch.append((handle, mint.narrow(values, 0, start, length)))
                start += length
                free -= -(-length // ROW)
                if not free:
                    self._fill(dtype, batch)
                    self.flush()
                    batch, free = [], self.row_limit
        self._fill(dtype, batch)

    def flush(self) -> None:
        """Read the rows that wait."""
        if self._waiting:
            waiting, plan = self._waiting, self._plan
            self.forget()
            self._leave(plan, self._read(waiting[0] if len(waiting) == 1 else mint.cat(tuple(waiting))))

    def forget(self) -> None:
        """Drop what waits."""
        self._waiting, self._plan = [], Plan()

    def _fill(self, dtype: Any, batch: Sequence[Run]) -> None:
        """Copy into rows: one launch, and one for another dtype."""
        if not batch:
            return
        parts = []
        for handle, values in batch:
            length = values.shape[0]
            parts.append(values)
            if length % ROW:
                parts.append(mint.narrow(self._nan(dtype), 0, 0, ROW - length % ROW))
            self._plan.add(handle, length)
        rows = mint.cat(tuple(parts))
        self._waiting.append(rows if dtype == mindspore.float32 else rows.astype(mindspore.float32))

    def _nan(self, dtype: Any) -> Any:
        if dtype not in self._padding:
            self._padding[dtype] = Tensor(np.full(ROW, np.nan, np.float32)).astype(dtype)
        return self._padding[dtype]

    def _read_in_place(self, handle: int, values: Any) -> None:
        plan = Plan()
        plan.add(handle, values.shape[0])
        self._leave(plan, self._read(values))

    def _read(self, values: Any) -> list[Any]:
        """What is left of rows, which lie behind one another."""
        x = values.reshape(-1, ROW)
        count = x.shape[0]
        above = mint.ge(x, self.bounds)
        counts = mint.sum(above, 2, dtype=mindspore.float32)
        known = above[_BOUNDS - 1]
        low = mint.amin(mint.where(known, x, self._infinity), 1)
        high = mint.amax(mint.where(known, x, self._lowest), 1)
        largest = mint.clamp(mint.maximum(mint.neg(low), high), min=LEAST_SCALE)
        scale = mint.bitwise_and(largest.view(mindspore.int32), self._exponent).view(mindspore.float32)
        y = mint.div(mint.where(known, x, self._zero), scale.reshape(count, 1))
        total = _steps(y)
        mean = mint.div(mint.sum(total, 1), counts[_BOUNDS - 1])
        y = mint.where(known, mint.sub(y, mean.reshape(count, 1)), self._zero)
        rest = _steps(y)
        sums = mint.cat((_steps(mint.mul(y, y)), rest, total))
        last = mint.sum(sums.reshape(len(SUMS) * count * PARTS, STEP), 1)
        return [counts.reshape(-1), low, high, scale, last]


def _steps(y: Any) -> Any:
    return mint.sum(y.reshape(y.shape[0], ROW // STEP, STEP), 2)


def for_merge(left: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that `msmon_stats.float32.merge` takes, of what reading has left of rows: float32 `[14 * rows]`, of
    each how many of its values reach the five bounds, `[5, rows]`; the extremes, the scale, and the sums."""
    rows = len(left) // LEFT
    counts = left[: _BOUNDS * rows].reshape(_BOUNDS, rows)
    zeros = counts[1] - counts[0]
    infs = counts[2] + (counts[4] - counts[3])
    return np.concatenate((zeros, infs, counts[4], left[_BOUNDS * rows :]))
