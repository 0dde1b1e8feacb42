"""Rows of float32 statistics by torch's own operators, in float32 and bool: many tensors share each launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from msmon_stats.float32 import LONG_ROW, NUMBERS, ROW, STEP, Plan

_ZEROS, _INFS, _NANS, _LOW, _HIGH, _CENTRE, _SCALE, _TOTAL, _SQUARES = range(len(NUMBERS))

_EXPONENT = 0x7F800000
_SMALLEST_NORMAL = 2.0**-126
_CAT = frozenset((torch.float32, torch.bfloat16, torch.float16))

LAUNCHES = 23
"""Operators that `Work.flush` calls, whatever it reads."""

Run = tuple[int, torch.Tensor]
"""A handle, and values of it in one run of memory."""


class Work:
    """Memory of a device in which tensors are read.

    Tensors are copied behind one another into rows, as many as fit, and then read together. Long ones in float32 are
    read where they lie.

    Args:
        device: where.
        size: of the memory, in bytes.
        numbers: gives memory for so many float32 numbers that stays until the step ends, and its place.
    """

    def __init__(self, device: torch.device, size: int, numbers: Callable[[int], tuple[torch.Tensor, int]]) -> None:
        # Of a value that was copied the memory holds itself, what is computed of it, and a mask.
        self.row_limit = max(1, size // (9 * ROW))
        self._memory = torch.empty(self.row_limit * ROW * 9 // 4, device=device)
        self._numbers = numbers
        self._zero, self._infinity, self._lowest = (
            torch.full((), number, device=device) for number in (0.0, math.inf, -math.inf)
        )
        self._padding = {dtype: torch.full((ROW,), math.nan, dtype=dtype, device=device) for dtype in _CAT}
        self.limit: float | torch.Tensor = 0.0
        """What lies below it counts as a zero: a float32 number, on the device where it is a tensor."""
        self.plan = Plan(ROW)
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
        if len(parts) == 1:
            target.copy_(parts[0])
        elif dtype is torch.float32:
            torch.cat(parts, out=target)
        else:
            # At the end of the memory, which waits for the flush.
            narrow = self._memory[len(self._memory) - rows * ROW // 2 :].view(dtype)
            target.copy_(torch.cat(parts, out=narrow))
        for handle, values in batch:
            self.plan.add(handle, values.numel())
        self._used += rows

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        return self._memory[start * ROW : stop * ROW]

    def _in_place(self, handle: int, values: torch.Tensor) -> torch.Tensor:
        """Read whole long rows of a tensor where they lie; what is left of it."""
        rows = values.numel() // LONG_ROW
        free, whole = self._long_rows(self._used), self._long_rows(0)
        if not free or -(-rows // free) > -(-rows // whole):
            self.flush()
            free = whole
        for start in range(0, rows, free):
            stop = min(start + free, rows)
            plan = Plan(LONG_ROW)
            plan.add(handle, (stop - start) * LONG_ROW)
            body = values[start * LONG_ROW : stop * LONG_ROW].view(-1, LONG_ROW)
            self._read(body, plan, self._memory[self._used * ROW :])
        return values[rows * LONG_ROW :]

    def _long_rows(self, used: int) -> int:
        return (len(self._memory) - used * ROW) * 4 // (5 * LONG_ROW)

    def flush(self) -> None:
        """Read the rows that wait."""
        if self._used:
            used, plan = self._used, self.plan
            self._read(self._rows(0, used).view(used, ROW), plan, self._memory[used * ROW :])
            self._used, self.plan = 0, Plan(ROW)

    def forget(self) -> None:
        """Drop what waits."""
        self._used, self.plan, self.done = 0, Plan(ROW), []

    def _read(self, x: torch.Tensor, plan: Plan, memory: torch.Tensor) -> None:
        """The numbers of rows `[n, width]`, in `memory` that has room for the values and a mask of them."""
        count, width = x.shape
        values = count * width
        flat, place = self._numbers(len(NUMBERS) * count)
        out = flat.view(len(NUMBERS), count)
        w = memory[:values].view(count, width)
        rest = memory[values : values + -(-values // 4)]
        mask = rest.view(torch.bool)[:values].view(count, width)

        torch.abs(x, out=w)
        torch.lt(w, self.limit, out=mask)
        torch.sum(mask, 1, dtype=torch.float32, out=out[_ZEROS])
        torch.eq(w, math.inf, out=mask)
        torch.sum(mask, 1, dtype=torch.float32, out=out[_INFS])
        torch.ne(x, x, out=mask)
        torch.sum(mask, 1, dtype=torch.float32, out=out[_NANS])
        torch.where(mask, self._infinity, x, out=w)
        torch.amin(w, 1, out=out[_LOW])
        torch.where(mask, self._lowest, x, out=w)
        torch.amax(w, 1, out=out[_HIGH])
        # One number a row. The exponents go where the sums will be.
        torch.clamp(self._zero.expand(count), out[_LOW], out[_HIGH], out=out[_CENTRE])
        ends, exponents = (out[first : first + 2].view(torch.int32) for first in (_LOW, _TOTAL))
        torch.bitwise_and(ends, _EXPONENT, out=exponents)
        torch.amax(out[_TOTAL:], 0, out=out[_SCALE])
        out[_SCALE].clamp_(min=_SMALLEST_NORMAL)

        torch.sub(x, out[_CENTRE].unsqueeze(1), out=w)
        w.div_(out[_SCALE].unsqueeze(1))
        w.masked_fill_(mask, 0.0)
        # The mask has served, and its memory takes sums of STEP values.
        steps = width // STEP
        sums = rest[: 2 * count * steps].view(2, count, steps)
        torch.sum(w.view(count, steps, STEP), 2, out=sums[0])
        w.mul_(w)
        torch.sum(w.view(count, steps, STEP), 2, out=sums[1])
        used = sums.numel()
        coarse = rest[used : used + used // STEP].view(2, count, steps // STEP)
        torch.sum(sums.view(2, count, steps // STEP, STEP), 3, out=coarse)
        torch.sum(coarse, 2, out=out[_TOTAL:])
        self.done.append((place, plan))


def _rows(batch: Sequence[Run]) -> int:
    return sum(-(-values.numel() // ROW) for _, values in batch)
