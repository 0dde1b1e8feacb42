"""Statistics by plain numpy: the definition that every other kernel is tested against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msmon_stats._fields import COUNT, INFS, MAX, MIN, NANS, SUM, SUMSQ, WIDTH, ZEROS

# Chunks bound the temporaries (float64 copy and masks) to a few hundred KiB, whatever the size of the array.
CHUNK = 1 << 16


def accumulate(array: NDArray[Any], eps: float, row: NDArray[np.float64]) -> None:
    """Write the partials of one array into a row of 8."""
    row[:] = 0.0
    row[MIN], row[MAX] = np.inf, -np.inf
    if array.size == 0:
        return
    sums: list[tuple[float, float]] = []
    with np.errstate(all="ignore"):
        for chunk in _chunks(array):
            values = np.abs(chunk).astype(np.float64) if chunk.dtype.kind == "c" else chunk.astype(np.float64)
            nan = np.isnan(values)
            nans = np.count_nonzero(nan)
            row[COUNT] += values.size
            row[NANS] += nans
            if nans:
                values = values[~nan]
            if values.size == 0:
                continue
            row[INFS] += np.count_nonzero(np.isinf(values))
            row[ZEROS] += np.count_nonzero(np.abs(values) < eps)
            row[MIN] = min(row[MIN], values.min())
            row[MAX] = max(row[MAX], values.max())
            sums.append((values.sum(), np.square(values).sum()))
        # numpy adds pairwise, so thousands of chunk sums lose no digits.
        row[SUM], row[SUMSQ] = np.array(sums).reshape(-1, WIDTH - SUM).sum(axis=0)


def _chunks(array: NDArray[Any]) -> Any:
    if array.size <= CHUNK:
        yield array.reshape(-1)
        return
    order = "K" if array.flags.c_contiguous or array.flags.f_contiguous else "C"
    if order == "K":
        flat = array.reshape(-1, order="A")
        for start in range(0, flat.size, CHUNK):
            yield flat[start : start + CHUNK]
    else:
        flags = ["external_loop", "buffered", "zerosize_ok"]
        yield from np.nditer(array, flags=flags, buffersize=CHUNK, order="K")
