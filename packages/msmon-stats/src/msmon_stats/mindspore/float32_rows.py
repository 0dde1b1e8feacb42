"""The partials of a step on an accelerator: in float32 there, made into float64 on the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from attrs import define, field
from mindspore import Tensor, mint, ops

from msmon_stats import numpy as host_arrays
from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.fingerprint import to_fields
from msmon_stats.float32 import ROW, WORK_BYTES, Carried, Correction, Number, Plan, WordRows, limit, merge
from msmon_stats.mindspore import host
from msmon_stats.mindspore.float32_words import Words
from msmon_stats.mindspore.float32_work import LEFT, Run, Work, bounds, flushes_denormals, for_merge
from msmon_stats.mindspore.values import is_sparse, on_host, stored_on_device
from msmon_stats.rows import Matrix, clear, unscale


def _dtypes(*names: str) -> frozenset[Any]:
    return frozenset(getattr(mindspore, name) for name in names if hasattr(mindspore, name))


_FLOATS = _dtypes("float32", "bfloat16", "float16")
_COUNTED = _dtypes("int32", "int64", "uint32")
"""Their extremes are found by operators for whole numbers: float32 rounds them."""
_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)
_TO_HOST = _dtypes("float64", "complex64", "complex128", "uint64")
"""They are copied as they are, and read on the host."""


@define(eq=False)
class _Step:
    """What is on the device of one step, and where."""

    handles: list[tuple[int, int]] = field(factory=list)
    """The first and the number of handles that were given together."""
    numbers: list[Any] = field(factory=list)
    """Flat float32 tensors that are carried behind one another."""
    count: int = 0
    """How many numbers that are."""
    plans: list[tuple[int, Plan]] = field(factory=list)
    corrections: list[tuple[int, Correction]] = field(factory=list)
    put: list[tuple[int, int, int, bool]] = field(factory=list)
    """Handle, length and place of numbers that were computed elsewhere, and whether they are whole ones."""
    on_host: list[tuple[int, Any, float, Number | None]] = field(factory=list)
    """Handle, copy, eps and scale of tensors that are read on the host."""
    contents: list[int] = field(factory=list)
    """Handles of what has a fingerprint that is computed on the device."""
    limits: dict[Any, tuple[Any, Any, Number | None]] = field(factory=dict)
    """A scale, so that no other takes its place, the bounds that come of it, and itself as the host will know it."""

    def carry(self, flat: Any) -> int:
        """Its place on the host."""
        place = self.count
        self.numbers.append(flat)
        self.count += flat.shape[0]
        return place

    def snapshot(self) -> _Step:
        """As it is now."""
        return _Step(
            list(self.handles),
            list(self.numbers),
            self.count,
            list(self.plans),
            list(self.corrections),
            list(self.put),
            list(self.on_host),
            list(self.contents),
        )


class Float32Rows:
    """Takes tensors on an accelerator; nothing waits for it before `Float32Copy.write`."""

    def __init__(self, width: int = WIDTH, size: int = WORK_BYTES) -> None:
        """`width`: columns of the rows; `size`: of the memory to work in, in bytes."""
        self._width = width
        self._size = size
        self._lock = threading.RLock()
        self._work: Work | None = None
        self._words = Words(size, lambda flat: self._step.carry(flat)) if width == WIDE else None
        self._step = _Step()
        self._limit: Any = None
        self._bounds: dict[float, Any] = {}

    def measure(self, tensors: Sequence[Any], eps: float, scale: Any, first: int) -> None:
        """Read supported tensors; their handles count up from `first`. See `msmon_stats.mindspore.PartialBuffer`."""
        with self._lock:
            if self._work is None:
                self._work = Work(self._size, self._leave)
            self._step.handles.append((first, len(tensors)))
            known_scale = self._apply_limit(self._work, eps, scale)
            runs: dict[Any, list[Run]] = {}
            for handle, tensor in enumerate(tensors, first):
                self._read(handle, tensor, eps, known_scale, runs)
            for dtype, group in runs.items():
                self._work.add(dtype, group)
            if self._words is not None:
                self._add_words(self._words, tensors, first)

    def _add_words(self, words: Words, tensors: Sequence[Any], first: int) -> None:
        """Read for fingerprints what is not read on the host."""
        runs: dict[Any, list[Run]] = {}
        for handle, tensor in enumerate(tensors, first):
            if not is_sparse(tensor) and tensor.dtype not in _TO_HOST:
                values, _ = stored_on_device(tensor)
                values = values.astype(mindspore.uint8) if values.dtype == mindspore.bool_ else values
                runs.setdefault(values.dtype, []).append((handle, values))
                self._step.contents.append(handle)
        for group in runs.values():
            words.add(group)

    def _read(self, handle: int, tensor: Any, eps: float, scale: Number | None, runs: dict[Any, list[Run]]) -> None:
        values, implicit = stored_on_device(tensor)
        extremes = None
        if values.dtype in _TO_HOST:
            self._step.on_host.append((handle, mint.cat((values,)), eps, scale))
            scale = None
        elif values.shape[0]:
            if values.dtype in _COUNTED:
                extremes = self._extremes(values)
            if values.dtype not in _FLOATS:
                values = values.astype(mindspore.float32)
            runs.setdefault(values.dtype, []).append((handle, values))
        if implicit or scale is not None or extremes is not None:
            correction = Correction(implicit=implicit, eps=lambda carried: eps, scale=scale, extremes=extremes)
            self._step.corrections.append((handle, correction))

    def _extremes(self, values: Any) -> Any:
        if values.dtype not in (mindspore.int32, mindspore.int64):
            values = values.astype(mindspore.int64)
        pair = mint.cat((mint.min(values).reshape(1), mint.max(values).reshape(1)))
        words, dtype = (1, np.int32) if values.dtype == mindspore.int32 else (2, np.int64)
        place = self._step.carry(pair.view(mindspore.float32))

        def extremes(carried: Carried) -> tuple[int, int]:
            low, high = carried[place : place + 2 * words].view(dtype).tolist()
            return low, high

        return extremes

    def _apply_limit(self, work: Work, eps: float, scale: Any) -> Number | None:
        """What counts as a zero from now on; what waits in the rows is read with the limit that it came with."""
        if isinstance(scale, Tensor) and on_host(scale):
            scale = host.number(scale)
        # The scale of a step does not change before the optimizer has consumed its gradients.
        key = eps, id(scale) if isinstance(scale, Tensor) else scale
        if key not in self._step.limits:
            self._step.limits[key] = (scale, *self._make_limit(eps, scale))
        if key != self._limit:
            work.flush()
            self._limit = key
        _, work.bounds, known = self._step.limits[key]
        return known

    def _make_limit(self, eps: float, scale: Any) -> tuple[Any, Number | None]:
        if not isinstance(scale, Tensor):
            number = limit(eps if scale is None else eps * scale)
            if 0.0 < number < _SMALLEST_NORMAL and flushes_denormals():
                number = _SMALLEST_NORMAL
            if number not in self._bounds:
                self._bounds[number] = Tensor(bounds(number), mindspore.float32).reshape(-1, 1, 1)
            return self._bounds[number], None if scale is None else lambda carried: scale
        # The values are compared as they are stored: with multiples of the limit, and with Inf.
        upper, lower, *rest = bounds(limit(eps))
        factor = ops.stop_gradient(scale).reshape(1).astype(mindspore.float32)
        scaled = mint.mul(factor, Tensor([1.0, upper, lower], mindspore.float32))
        place = self._step.carry(mint.narrow(scaled, 0, 0, 1))
        limits = mint.cat((mint.narrow(scaled, 0, 1, 2), Tensor(rest, mindspore.float32)))
        return limits.reshape(-1, 1, 1), lambda carried: float(carried[place])

    def _leave(self, plan: Plan, left: Sequence[Any]) -> None:
        self._step.plans.append((self._step.count, plan))
        for flat in left:
            self._step.carry(flat)

    def put(self, values: Any, first: int) -> None:
        """Carry numbers that were computed on the device, 8 for each handle."""
        with self._lock:
            flat = ops.stop_gradient(values).reshape(-1)
            whole = "float" not in str(flat.dtype).lower()
            # Also a copy, where it is float32 already.
            copy = mint.cat((flat.astype(mindspore.int64 if whole else mindspore.float32),))
            place = self._step.carry(copy.view(mindspore.float32))
            self._step.put.append((first, flat.shape[0], place, whole))

    @property
    def is_used(self) -> bool:
        """Whether the step has any rows here."""
        return bool(self._step.handles or self._step.put)

    def begin(self) -> Float32Copy:
        """Bring together what the step has so far."""
        with self._lock:
            if self._work is not None:
                self._work.flush()
            step = self._step.snapshot()
            words = [] if self._words is None else list(self._words.done)
            return Float32Copy(step, mint.cat(tuple(step.numbers)) if step.numbers else None, words)

    def reset(self) -> None:
        """The step is over."""
        with self._lock:
            self._step, self._limit = _Step(), None
            if self._work is not None:
                self._work.forget()
            if self._words is not None:
                self._words.forget()


class Float32Copy:
    """A step's numbers on their way to the host."""

    def __init__(self, step: _Step, numbers: Any, words: Sequence[WordRows]) -> None:
        self._step = step
        self._numbers = numbers
        self._words = words

    def write(self, result: Matrix) -> None:
        """Wait for the numbers, and write the rows into float64 `[n, 8]`, each to its handle."""
        step = self._step
        carried: Carried = np.empty(0, np.float32) if self._numbers is None else self._numbers.asnumpy()
        for first, count in step.handles:
            clear(result[first : first + count].T)
            result[first : first + count, WIDTH:] = np.nan
        for place, plan in step.plans:
            merge(plan, for_merge(carried[place : place + LEFT * plan.row_count]), result)
        for handle, values, eps, scale in step.on_host:
            factor = 1.0 if scale is None else scale(carried)
            row = result[handle]
            array, kernel = values.asnumpy(), host_arrays.usable_kernels()[0]
            host_arrays.partial(array, eps * factor, out=row, kernel=kernel, fingerprint=len(row) > WIDTH)
            unscale(row, factor)
        for handle, correction in step.corrections:
            correction.apply(result[handle], carried)
        contents = dict.fromkeys(step.contents, 0)
        for rows in self._words:
            rows.add_to(contents, carried)
        for handle, content in contents.items():
            result[handle, WIDTH:] = to_fields(content)
        for handle, length, place, whole in step.put:
            words = carried[place : place + (2 * length if whole else length)]
            target = result[handle : handle - (-length // result.shape[1])].reshape(-1)
            target[:] = 0.0
            target[:length] = words.view(np.int64 if whole else np.float32)


def partials(tensors: Sequence[Any], eps: float, width: int) -> Matrix:
    """The partials of supported tensors, on the host, in rows of `width` columns; waits for the device."""
    rows = Float32Rows(width, min(WORK_BYTES, sum(40 * (tensor.size + ROW) for tensor in tensors)))
    rows.measure(tensors, eps, None, 0)
    result = np.empty((len(tensors), width))
    rows.begin().write(result)
    return result
