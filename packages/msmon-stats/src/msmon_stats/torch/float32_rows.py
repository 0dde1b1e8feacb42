"""The partials of a step on a device for which there is no kernel: in float32 there, made into float64 on the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from attrs import define, field

from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.fingerprint import to_fields
from msmon_stats.float32 import (
    LEAST_SCALE,
    PER_ROW,
    ROW,
    WORK_BYTES,
    Carried,
    Correction,
    Number,
    Plan,
    WordRows,
    limit,
    merge,
)
from msmon_stats.pages import Pages
from msmon_stats.rows import Matrix, clear, unscale
from msmon_stats.torch import operators
from msmon_stats.torch.copies import HostCopy
from msmon_stats.torch.devices import current_stream
from msmon_stats.torch.float32_words import Words
from msmon_stats.torch.float32_work import Run, Work
from msmon_stats.torch.kernels import number, runs_triton, usable_kernels
from msmon_stats.torch.values import Stored, absolute, plain, split, stored

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_COUNTED = (torch.int32, torch.int64)
"""Their extremes are found by operators for whole numbers: float32 rounds them."""
_TO_HOST = tuple(getattr(torch, name) for name in ("float64", "complex128", "uint32", "uint64") if hasattr(torch, name))
"""They cannot be read on such a device, or not exactly; where there are any, they are read on the host."""


@define(eq=False)
class _Step:
    """What is on the device of one step, and where."""

    pages: Pages
    handles: list[tuple[int, int]] = field(factory=list)
    """The first and the number of handles that were given together."""
    plans: list[tuple[int, Plan]] = field(factory=list)
    corrections: list[tuple[int, Correction]] = field(factory=list)
    put: list[tuple[int, int, int, torch.dtype]] = field(factory=list)
    """Handle, length, place and dtype of numbers that were computed elsewhere."""
    on_host: list[tuple[int, torch.Tensor, Number, Number | None]] = field(factory=list)
    """Handle, copy, eps and scale of tensors that are read on the host."""
    known: dict[Any, tuple[torch.Tensor, Number]] = field(factory=dict)
    """Numbers of the device that are carried. The tensors are kept, so that no other takes their address."""
    words: list[WordRows] = field(factory=list)
    contents: list[int] = field(factory=list)
    """Handles of what has a fingerprint by `words`."""
    limits: dict[Any, tuple[float | torch.Tensor, Number, Number | None]] = field(factory=dict)
    """What counts as a zero, by eps and scale."""

    def snapshot(self) -> _Step:
        """As it is now."""
        return _Step(
            self.pages,
            list(self.handles),
            list(self.plans),
            list(self.corrections),
            list(self.put),
            list(self.on_host),
            words=list(self.words),
            contents=list(self.contents),
        )


class Float32Rows:
    """Takes the tensors of one device. Of all that is here nothing waits for it.

    The work memory belongs to the streams one after the other: one that measures waits for what the one before it has
    launched.
    """

    def __init__(self, device: torch.device, width: int = WIDTH, size: int = WORK_BYTES) -> None:
        """`width`: columns of the rows; `size`: of the work memory, in bytes."""
        self._device = device
        self._width = width
        self._size = size
        self._lock = threading.RLock()
        self._work: Work | None = None
        self._words: Words | None = None
        self._step = _Step(self._new_pages(0))
        self._stream: Any = None
        self._limit: tuple[Any, Any] | None = None
        self._copies: list[HostCopy] = []

    def prepare(self) -> None:
        """Allocate what lasts longer than a step."""
        with self._lock:
            if self._work is None:
                if self._width == WIDE:
                    self._words = Words(self._device, self._size, self._numbers)
                self._work = _work_class(self._device.type)(self._device, self._size, self._numbers, self._words)

    def reserve(self, count: int, first: int) -> int:
        """So many handles, which count up from `first`."""
        self._step.handles.append((first, count))
        return first

    def measure(self, tensors: Sequence[torch.Tensor], eps: Any, scale: Any, first: int) -> None:
        """Read supported local tensors; their handles count up from `first`. See `msmon_stats.torch.PartialBuffer`."""
        with self._lock, torch.no_grad():
            self.prepare()
            self._enter_stream()
            _, eps, scale = self._apply_limit(eps, scale)
            runs: dict[torch.dtype, list[Run]] = {}
            for handle, tensor in enumerate(tensors, first):
                self._read(handle, tensor, eps, scale, runs)
            assert self._work is not None
            for dtype, group in runs.items():
                self._work.add(dtype, group)

    def _read(
        self, handle: int, tensor: torch.Tensor, eps: Number, scale: Number | None, runs: dict[torch.dtype, list[Run]]
    ) -> None:
        work, step = self._work, self._step
        assert work is not None
        if tensor.dtype in _TO_HOST:
            copy = tensor.detach().to("cpu", non_blocking=True, copy=True)
            step.on_host.append((handle, copy, eps, scale))
            return
        is_run = tensor.dtype in _FLOATS and plain(tensor) is not None
        if self._words is not None and (is_run or self._words.add(handle, tensor)):
            step.contents.append(handle)
        # Nearly all of them are runs.
        found = Stored(values=tensor.detach().view(-1), dense=True, times=1, implicit=0) if is_run else stored(tensor)
        values = found.values
        extremes = None
        if values.numel() == 0:
            pass
        elif is_run or (values.dtype in _FLOATS and found.dense and self._words is None):
            runs.setdefault(values.dtype, []).append((handle, values))
        else:
            # The absolute values of a part take memory beside that for work.
            rows = max(1, work.row_limit // 4) if values.is_complex() else work.row_limit
            for part in split(values, rows * ROW):
                work.convert(handle, absolute(part) if part.is_complex() else part)
            if values.dtype in _COUNTED:
                extremes = self._extremes(values)
        self._correct(handle, found, eps, scale, extremes)

    def _correct(self, handle: int, found: Stored, eps: Number, scale: Number | None, extremes: Any) -> None:
        if found.times != 1 or found.implicit or scale is not None or extremes is not None:
            correction = Correction(times=found.times, implicit=found.implicit, eps=eps, scale=scale, extremes=extremes)
            self._step.corrections.append((handle, correction))

    def _extremes(self, values: torch.Tensor) -> Any:
        words = values.element_size() // 4
        flat, place = self._numbers(2 * words)
        out = flat.view(values.dtype)
        axes = tuple(range(values.dim()))
        torch.amin(values, axes, out=out[0])
        torch.amax(values, axes, out=out[1])
        dtype = np.int64 if words == 2 else np.int32

        def extremes(carried: Carried) -> tuple[int, int]:
            low, high = carried[place : place + 2 * words].view(dtype).tolist()
            return low, high

        return extremes

    def _apply_limit(self, eps: Any, scale: Any) -> tuple[float | torch.Tensor, Number, Number | None]:
        """What counts as a zero from now on; what waits in the rows is read with the limit that it came with."""
        key = _identity(eps), _identity(scale)
        found = self._step.limits.get(key)
        if key != self._limit or found is None:
            assert self._work is not None
            self._flush()
            if found is None:
                found = self._step.limits[key] = self._make_limit(eps, scale)
            self._work.limit, self._limit = found[0], key
        return found

    def _make_limit(self, eps: Any, scale: Any) -> tuple[float | torch.Tensor, Number, Number | None]:
        carried_eps = self._carry(eps)
        carried_scale = None if scale is None else self._carry(scale)
        known_eps, known_scale = _known(eps), 1.0 if scale is None else _known(scale)
        if known_eps is not None and known_scale is not None:
            return limit(known_eps * known_scale), carried_eps, carried_scale
        # A tensor of the device: float32 is what it has.
        factors = [
            one.detach().reshape(()).to(self._device, torch.float32) if known is None else limit(known)
            for one, known in ((eps, known_eps), (scale, known_scale))
        ]
        return factors[0] * factors[1], carried_eps, carried_scale

    def _carry(self, value: Any) -> Number:
        """A number that the host will know when it needs it."""
        known = _known(value)
        if known is not None:
            return lambda carried: known
        key = _identity(value)
        if key not in self._step.known:
            flat, place = self._numbers(1)
            flat.copy_(value.detach().reshape(1), non_blocking=True)
            self._step.known[key] = value, lambda carried: float(carried[place])
        return self._step.known[key][1]

    def put(self, values: torch.Tensor, first: int) -> None:
        """Carry numbers that were computed on the device, 8 for each handle."""
        with self._lock, torch.no_grad():
            self._enter_stream()
            length = values.numel()
            dtype = values.dtype if values.dtype in _COUNTED else torch.float32
            flat, place = self._numbers(length * dtype.itemsize // 4)
            flat.view(dtype).copy_(values)
            self._step.put.append((first, length, place, dtype))

    @property
    def is_used(self) -> bool:
        """Whether the step has any rows here."""
        return bool(self._step.handles)

    def begin(self) -> Float32Copy:
        """Begin to copy what the step has so far."""
        with self._lock, torch.no_grad():
            self._enter_stream()
            self._flush()
            step = self._step.snapshot()
            copy = HostCopy(self._device, step.pages.filled())
            # Also where nobody waits for it, its memory is used until it is over.
            self._copies = [*(one for one in self._copies if not one.is_over), copy]
            return Float32Copy(step, copy)

    def reset(self) -> None:
        """The step is over."""
        with self._lock:
            self._step = _Step(self._new_pages(self._step.pages.count))
            self._limit = None
            if self._work is not None:
                self._work.forget()
            if self._words is not None:
                self._words.forget()

    def _flush(self) -> None:
        if self._work is not None:
            self._work.flush()
            self._step.plans += self._work.done
            self._work.done = []
        if self._words is not None:
            self._step.words += self._words.done
            self._words.done = []

    def _numbers(self, count: int) -> tuple[torch.Tensor, int]:
        # Whole numbers of 8 bytes begin at an even place.
        place = self._step.pages.count
        page, start, _ = self._step.pages.take(count + count % 2)
        return page[start : start + count], place

    def _new_pages(self, expected: int) -> Pages:
        def allocate(count: int) -> tuple[torch.Tensor, int]:
            return torch.full((count,), LEAST_SCALE, device=self._device), 0

        return Pages(allocate, expected)

    def _enter_stream(self) -> None:
        stream = current_stream(self._device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream


@cache
def _work_class(device_type: str) -> type[Work]:
    if not runs_triton(device_type):
        return Work
    from msmon_stats.torch.triton_rows import KernelWork

    return KernelWork


def _known(value: Any) -> float | None:
    """A number that the host knows now."""
    return number(value) if not isinstance(value, torch.Tensor) or value.is_cpu else None


def _identity(value: Any) -> Any:
    """What a number is told apart by that may be on the device; None stands for itself."""
    known = None if value is None else _known(value)
    return known if value is None or known is not None else (value.data_ptr(), value._version, value.dtype)


class Float32Copy:
    """The copy of a step's numbers to the host, under way."""

    def __init__(self, step: _Step, copy: HostCopy) -> None:
        self._step = step
        self._copy = copy

    def write(self, result: Matrix) -> None:
        """Wait for the copy, and write the rows into float64 `[n, 8]`, each to its handle."""
        step, carried = self._step, self._copy.wait()
        for first, count in step.handles:
            clear(result[first : first + count].T)
            result[first : first + count, WIDTH:] = np.nan
        for place, plan in step.plans:
            merge(plan, carried[place : place + PER_ROW * plan.row_count], result)
        for handle, values, eps, scale in step.on_host:
            factor = 1.0 if scale is None else scale(carried)
            row = result[handle : handle + 1]
            _read_on_host(values, eps(carried) * factor, row)
            unscale(row, factor)
        for handle, correction in step.corrections:
            correction.apply(result[handle], carried)
        contents = dict.fromkeys(step.contents, 0)
        for rows in step.words:
            rows.add_to(contents, carried)
        for handle, content in contents.items():
            result[handle, WIDTH:] = to_fields(content)
        for handle, length, place, dtype in step.put:
            words = carried[place : place + length * dtype.itemsize // 4]
            target = result[handle : handle - (-length // result.shape[1])].reshape(-1)
            target[:] = 0.0
            target[:length] = words.view({torch.int32: np.int32, torch.int64: np.int64}.get(dtype, np.float32))


def _read_on_host(values: torch.Tensor, eps: float, row: Matrix) -> None:
    if "cpu" in usable_kernels("cpu"):
        from msmon_stats.torch import host

        host.rows([values], eps, row)
    else:
        operators.accumulate(values, eps, torch.from_numpy(row)[0])


def partials(tensors: Sequence[torch.Tensor], eps: Any, width: int = WIDTH) -> Matrix:
    """The partials of supported local tensors on one device, on the host, in rows of `width` columns; waits for the
    device."""
    values = sum(tensor.numel() + ROW for tensor in tensors)
    rows = Float32Rows(tensors[0].device, width, min(WORK_BYTES, 10 * values))
    rows.measure(tensors, eps, None, rows.reserve(len(tensors), 0))
    result = np.empty((len(tensors), width))
    rows.begin().write(result)
    return result
