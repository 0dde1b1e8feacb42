"""Rows of float32 statistics by a kernel: each row is read once, where it lies, and everything of it is computed there.

For devices without float64, and for those where it takes longer than reading does. What is left of a row is what
`msmon_stats.float32` describes, so the host makes partials of it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from msmon_stats.fields import WIDTH
from msmon_stats.float32 import PER_ROW, ROW, Plan, merge
from msmon_stats.rows import clear
from msmon_stats.torch.devices import entered
from msmon_stats.torch.float32_work import Run, Work
from msmon_stats.torch.triton_kernels import TYPES, send, table_of, words_of
from msmon_stats.torch.values import KERNEL_DTYPES
from msmon_stats.torch.words import element_powers_on


@triton.jit
def _read_row(
    pointer, size, limit_pointer, numbers, words, places, row, count, ROW: tl.constexpr, ITEMSIZE: tl.constexpr
):
    """Write what is left of `size` values, at most `ROW`, as the row of this number among `count`.

    With fingerprints `ITEMSIZE` is that of the values, else 0; `words` takes a sum of each row, and `places` is by what
    its elements are multiplied.
    """
    limit = tl.load(limit_pointer)
    infinity = float("inf")
    lane = tl.arange(0, ROW)
    inside = lane < size
    stored = tl.load(pointer + lane, mask=inside, other=0)
    if ITEMSIZE:
        tl.store(words + row, tl.sum(words_of(stored, ITEMSIZE) * tl.load(places + lane), 0))
    value = stored.to(tl.float32)
    known = inside & (value == value)
    magnitude = tl.abs(value)
    low = tl.min(tl.where(known, value, infinity), 0)
    high = tl.max(tl.where(known, value, -infinity), 0)
    number = tl.sum(known.to(tl.int32), 0)
    # A power of two and what is 1 over it, both normal numbers: a division need not be exact, a product is.
    bits = tl.maximum(tl.abs(low), tl.abs(high)).to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.minimum(tl.maximum(bits, 0x00800000), 0x7E800000)
    scaled = tl.where(known, value * (0x7F000000 - bits).to(tl.float32, bitcast=True), 0.0)
    total = tl.sum(scaled, 0)
    rest = tl.where(known, scaled - total / tl.maximum(number, 1).to(tl.float32), 0.0)
    tl.store(numbers + row, tl.sum((inside & (magnitude < limit)).to(tl.int32), 0).to(tl.float32))
    tl.store(numbers + count + row, tl.sum((inside & (magnitude == infinity)).to(tl.int32), 0).to(tl.float32))
    tl.store(numbers + 2 * count + row, number.to(tl.float32))
    tl.store(numbers + 3 * count + row, low)
    tl.store(numbers + 4 * count + row, high)
    tl.store(numbers + 5 * count + row, bits.to(tl.float32, bitcast=True))
    # Sums have two parts; here they need but one.
    sums = numbers + 6 * count + 2 * row
    tl.store(sums, tl.sum(rest * rest, 0))
    tl.store(sums + 1, 0.0)
    tl.store(sums + 2 * count, tl.sum(rest, 0))
    tl.store(sums + 2 * count + 1, 0.0)
    tl.store(sums + 4 * count, total)
    tl.store(sums + 4 * count + 1, 0.0)


@triton.jit(do_not_specialize=["size", "count"])
def _one_tensor(pointer, size, limit, numbers, words, places, count, ROW: tl.constexpr, ITEMSIZE: tl.constexpr):
    row = tl.program_id(0)
    start = row.to(tl.int64) * ROW
    _read_row(pointer + start, size - start, limit, numbers, words, places, row, count, ROW, ITEMSIZE)


@triton.jit(do_not_specialize=["count"])
def _many_tensors(
    table,
    limit,
    numbers,
    words,
    places,
    count,
    DTYPE: tl.constexpr,
    ROW: tl.constexpr,
    ITEMSIZE: tl.constexpr,
):
    """`table`: address and size of each row."""
    row = tl.program_id(0)
    pointer = tl.load(table + row * 2).to(tl.pointer_type(DTYPE))
    size = tl.load(table + row * 2 + 1)
    _read_row(pointer, size, limit, numbers, words, places, row, count, ROW, ITEMSIZE)


class KernelWork(Work):
    """As `Work`, but tensors of floating point numbers are read by the kernel, at once and where they lie."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._limits: dict[float, torch.Tensor] = {}

    def add(self, dtype: torch.dtype, runs: Sequence[Run]) -> None:
        """Read tensors of one of the dtypes float32, bfloat16 and float16."""
        plan = Plan()
        for handle, values in runs:
            plan.add(handle, values.numel())
        count = plan.row_count
        numbers, place = self._numbers(PER_ROW * count)
        limit = self._limit_tensor(numbers.device)
        itemsize, words, places = 0, limit, limit
        if self._words is not None:
            itemsize = runs[0][1].element_size()
            words = self._words.room(itemsize, [(handle, values.numel()) for handle, values in runs], 0)
            places = element_powers_on(numbers.device, ROW, itemsize)
        sums = (words, places, count)
        with entered(numbers.device):
            if len(runs) == 1:
                _one_tensor[(count,)](runs[0][1], plan.values[0], limit, numbers, *sums, ROW=ROW, ITEMSIZE=itemsize)
            else:
                addresses = [values.data_ptr() for _, values in runs]
                table = table_of(addresses, plan.values, plan.rows, ROW, runs[0][1].element_size())
                kind: Any = TYPES[KERNEL_DTYPES[dtype]]
                table = send(table, numbers.device)
                _many_tensors[(count,)](table, limit, numbers, *sums, DTYPE=kind, ROW=ROW, ITEMSIZE=itemsize)
        self.done.append((place, plan))

    def _limit_tensor(self, device: torch.device) -> torch.Tensor:
        if isinstance(self.limit, torch.Tensor):
            return self.limit
        if self.limit not in self._limits:
            self._limits[self.limit] = torch.full((), self.limit, device=device)
        return self._limits[self.limit]


def reader(values: torch.Tensor) -> Callable[[], tuple[Plan, torch.Tensor]]:
    """Reads one tensor each time that it is called: how its values lie in rows, and what is left of them."""
    numbers = torch.zeros(PER_ROW * -(-values.numel() // ROW), device=values.device)
    work = KernelWork(values.device, 0, lambda _: (numbers, 0))
    work.limit = 1.0

    def read() -> tuple[Plan, torch.Tensor]:
        work.add(values.dtype, [(0, values)])
        return work.done.pop()[1], numbers

    return read


def works(device_type: str) -> bool:
    """Whether the kernel gives the right numbers on a kind of device; waits for it, and raises what it raises."""
    plan, numbers = reader(torch.arange(-3.0, 4.0, device=device_type))()
    row = np.zeros((1, WIDTH))
    clear(row[0])
    merge(plan, numbers.cpu().numpy(), row)
    return bool(row[0].tolist() == [7.0, 0.0, 0.0, 1.0, -3.0, 3.0, 0.0, 28.0])
