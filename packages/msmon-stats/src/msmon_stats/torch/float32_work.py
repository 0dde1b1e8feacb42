"""Rows of float32 statistics by torch's own operators, in float32 and bool: many tensors share each launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from msmon_stats.float32 import EXPONENT, NUMBERS, PARTS, PER_ROW, ROW, STEP, SUMS, Plan
from msmon_stats.torch.float32_words import Words

_ZEROS, _INFS, _KNOWN, _LOW, _HIGH, _SCALE = range(len(NUMBERS))

_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
"""The bits of what is free in rows, by the dtypes that rows are made of."""

_STEPS = ROW // STEP
# float32 numbers of memory for a row that is read where it lies: what is computed of each value, a mask in bytes, the
# sums that have to be made before the mask has served, and a mean.
_ONE_ROW = ROW + ROW // 4 + _STEPS + 1

Run = tuple[int, torch.Tensor]
"""A handle, and values of it in one run of memory."""


class Work:
    """Memory of a device in which tensors are read.

    Tensors are copied behind one another into rows, as many as fit, and then read together. Long ones in float32 are
    read where they lie.

    Args:
        device: where.
        size: of the memory, in bytes.
        numbers: gives memory for so many float32 numbers that stays until the step ends, filled with `LEAST_SCALE`,
            and its place.
        words: sums the words of what is read, for fingerprints.
    """

    def __init__(
        self,
        device: torch.device,
        size: int,
        numbers: Callable[[int], tuple[torch.Tensor, int]],
        words: Words | None = None,
    ) -> None:
        self.row_limit = max(1, size // 4 // (ROW + _ONE_ROW))
        self._memory = torch.empty(max(size // 4, ROW + _ONE_ROW), device=device)
        self._numbers = numbers
        self._words = words
        self._zero, self._infinity, self._lowest = (
            torch.full((), number, device=device) for number in (0.0, math.inf, -math.inf)
        )
        self._padding = {dtype: torch.full((ROW,), math.nan, dtype=dtype, device=device) for dtype in _NAN}
        if words is not None:
            # Of a NaN that a device makes nobody knows the bits.
            for dtype, bits in _NAN.items():
                self._padding[dtype].copy_(torch.full((ROW,), bits, dtype=_whole(dtype)).view(dtype))
        self.limit: float | torch.Tensor = 0.0
        """What lies below it counts as a zero: a float32 number, on the device where it is a tensor."""
        self.plan = Plan()
        """What waits in the rows."""
        self.done: list[tuple[int, Plan]] = []
        """What was read, and the place of its numbers."""
        self._used = 0

    def add(self, dtype: torch.dtype, runs: Sequence[Run]) -> None:
        """Read tensors of one of the dtypes float32, bfloat16 and float16."""
        waiting = list(runs[::-1])
        batch: list[Run] = []
        free = self.row_limit - self._used
        while waiting:
            handle, values = waiting.pop()
            if dtype is torch.float32 and values.numel() >= self.row_limit * ROW:
                values = self._in_place(handle, values)
                free = self.row_limit - self._used - _rows(batch)
            if values.numel() > free * ROW:
                waiting.append((handle, values[free * ROW :]))
                values = values[: free * ROW]
            if values.numel():
                batch.append((handle, values))
                free -= -(-values.numel() // ROW)
            if not free:
                self._fill(dtype, batch)
                self.flush()
                batch, free = [], self.row_limit
        if batch:
            self._fill(dtype, batch)

    def convert(self, handle: int, values: torch.Tensor) -> None:
        """Read strided values of a dtype that a copy converts; at most `row_limit * ROW` of them."""
        rows = -(-values.numel() // ROW)
        if rows > self.row_limit - self._used:
            self.flush()
        target = self._rows(self._used, self._used + rows)
        target[: values.numel()].view(values.shape).copy_(values)
        if len(target) > values.numel():
            target[values.numel() :].fill_(math.nan)
        self._used += self.plan.add(handle, values.numel())

    def _fill(self, dtype: torch.dtype, batch: Sequence[Run]) -> None:
        """Copy into the next rows: one launch, and one for another dtype."""
        parts = []
        for _, values in batch:
            parts.append(values)
            if values.numel() % ROW:
                parts.append(self._padding[dtype][values.numel() % ROW :])
        rows = _rows(batch)
        target = self._rows(self._used, self._used + rows)
        stored = target
        if len(parts) == 1:
            target.copy_(parts[0])
            stored = parts[0]
        elif dtype is torch.float32:
            torch.cat(parts, out=target)
        else:
            # At the end of the memory, which waits for the flush.
            stored = self._memory[len(self._memory) - rows * ROW // 2 :].view(dtype)
            target.copy_(torch.cat(parts, out=stored))
        if self._words is not None:
            self._words.add_rows(stored, [(handle, values.numel()) for handle, values in batch], _NAN[dtype])
        for handle, values in batch:
            self.plan.add(handle, values.numel())
        self._used += rows

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        return self._memory[start * ROW : stop * ROW]

    def _in_place(self, handle: int, values: torch.Tensor) -> torch.Tensor:
        """Read whole rows of a tensor where they lie; what is left of it."""
        rows = values.numel() // ROW
        free, whole = ((len(self._memory) - used * ROW) // _ONE_ROW for used in (self._used, 0))
        if rows // whole > rows // max(1, free):
            self.flush()
            free = whole
        # What is left of the last time goes with other tensors, if it fits.
        times = max(1, rows // free if rows % free < self.row_limit // 2 else -(-rows // free))
        for start in range(0, min(rows, times * free), free):
            stop = min(start + free, rows)
            plan = Plan()
            plan.add(handle, (stop - start) * ROW)
            here = values[start * ROW : stop * ROW]
            if self._words is not None:
                self._words.add_rows(here, [(handle, len(here))], _NAN[torch.float32])
            self._read(here.view(-1, ROW), plan, self._memory[self._used * ROW :])
        return values[stop * ROW :]

    def flush(self) -> None:
        """Read the rows that wait."""
        if self._used:
            used, plan = self._used, self.plan
            self._read(self._rows(0, used).view(used, ROW), plan, self._memory[used * ROW :])
            self._used, self.plan = 0, Plan()

    def forget(self) -> None:
        """Drop what waits."""
        self._used, self.plan, self.done = 0, Plan(), []

    def _read(self, x: torch.Tensor, plan: Plan, memory: torch.Tensor) -> None:
        """The numbers of rows `[n, ROW]`, in `memory` that has room for the values and a mask of them."""
        count, values = len(x), x.numel()
        numbers, place = self._numbers(PER_ROW * count)
        split = len(NUMBERS) * count
        out, last = numbers[:split].view(-1, count), numbers[split:].view(len(SUMS), count, PARTS)
        w = memory[:values].view(count, ROW)
        mask = memory[values : values + values // 4].view(torch.bool).view(count, ROW)
        # Two of three sums are made when the mask has served, and take the end of its memory.
        start, size = values + values // 4 - 2 * count * _STEPS, 3 * count * _STEPS
        sums = memory[start : start + size].view(len(SUMS), count, _STEPS)
        mean = memory[start + size : start + size + count]

        torch.abs(x, out=w)
        torch.lt(w, self.limit, out=mask)
        torch.sum(mask, 1, dtype=torch.float32, out=out[_ZEROS])
        torch.eq(w, math.inf, out=mask)
        torch.sum(mask, 1, dtype=torch.float32, out=out[_INFS])
        torch.eq(x, x, out=mask)
        torch.sum(mask, 1, dtype=torch.float32, out=out[_KNOWN])
        torch.where(mask, x, self._infinity, out=w)
        torch.amin(w, 1, out=out[_LOW])
        torch.where(mask, x, self._lowest, out=w)
        torch.amax(w, 1, out=out[_HIGH])
        # The power of two in the largest of three numbers a row: two extremes, and the one that the memory came with.
        # It is found where the sums will be.
        ends = out[_LOW : _SCALE + 1].view(torch.int32)
        powers = numbers[split : split + 3 * count].view(3, count)
        torch.bitwise_and(ends, EXPONENT, out=powers.view(torch.int32))
        torch.amax(powers, 0, out=out[_SCALE])

        torch.div(x, out[_SCALE].unsqueeze(1), out=w)
        torch.where(mask, w, self._zero, out=w)
        torch.sum(w.view(count, _STEPS, STEP), 2, out=sums[2])
        torch.sum(sums[2], 1, out=mean)
        w.addcdiv_(mean.unsqueeze(1), out[_KNOWN].unsqueeze(1), value=-1)
        torch.where(mask, w, self._zero, out=w)
        torch.sum(w.view(count, _STEPS, STEP), 2, out=sums[1])
        w.mul_(w)
        torch.sum(w.view(count, _STEPS, STEP), 2, out=sums[0])
        torch.sum(sums.view(len(SUMS), count, PARTS, STEP), 3, out=last)
        self.done.append((place, plan))


def _whole(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype is torch.float32 else torch.int16


def _rows(batch: Sequence[Run]) -> int:
    return sum(-(-values.numel() // ROW) for _, values in batch)
