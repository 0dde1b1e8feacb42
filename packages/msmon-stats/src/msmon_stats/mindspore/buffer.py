"""All partials of a step and their transfer to the host, for MindSpore."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import mint, ops

from msmon_stats.fields import MIN, SUMSQ, WIDTH
from msmon_stats.mindspore import host
from msmon_stats.mindspore.partials import device_rows
from msmon_stats.mindspore.values import on_host, unsupported_reason
from msmon_stats.rows import Matrix, unscale


class Transfer:
    """The rows of one step on their way to the host."""

    def __init__(self, groups: list[tuple[range, Any]]) -> None:
        self._groups = groups

    def matrix(self) -> Matrix:
        """Wait for the copy: float64 `[n, 8]` on the host; the row index is the handle."""
        result = np.zeros((sum(len(handles) for handles, _ in self._groups), WIDTH))
        device = [(handles, rows) for handles, rows in self._groups if not isinstance(rows, np.ndarray)]
        if device:
            copied = ops.concat([rows for _, rows in device]).asnumpy()
            start = 0
            for handles, _ in device:
                result[handles] = copied[start : start + len(handles)]
                start += len(handles)
        for handles, rows in self._groups:
            if isinstance(rows, np.ndarray):
                result[handles] = rows
        return result


class PartialBuffer:
    """Collects the partials of a step. See `msmon_stats.torch.PartialBuffer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[tuple[range, Any]] = []
        self._count = 0

    def measure(self, tensors: Sequence[Any], eps: Any, scale: Any = None) -> list[int]:
        """Compute partials; a handle for each tensor, -1 for an unsupported one."""
        handles = [-1] * len(tensors)
        places: dict[bool, list[int]] = {}
        for i, tensor in enumerate(tensors):
            if unsupported_reason(tensor) is None:
                places.setdefault(on_host(tensor), []).append(i)
        for is_host, members in places.items():
            group = [tensors[i] for i in members]
            rows = self._rows_on_host(group, eps, scale) if is_host else self._rows_on_device(group, eps, scale)
            for i, handle in zip(members, self._append(rows, len(members)), strict=True):
                handles[i] = handle
        return handles

    def put(self, values: Any) -> int:
        """Let numbers ride in the same transfer; see `msmon_stats.torch.PartialBuffer.put`."""
        flat = values.reshape(-1)
        count = max(-(-flat.shape[0] // WIDTH), 1)
        free = count * WIDTH - flat.shape[0]
        if on_host(values):
            rows = np.zeros(count * WIDTH)
            rows[: flat.shape[0]] = flat.asnumpy()
            return self._append(rows.reshape(count, WIDTH), count)[0]
        if free:
            flat = ops.concat((flat, mint.zeros((free,), dtype=flat.dtype)))
        return self._append(flat.reshape(count, WIDTH), count)[0]

    def is_capturing(self) -> bool:
        """Never: graphs of MindSpore run no Python."""
        return False

    def discard(self) -> None:
        """Forget the rows so far and start again at handle 0."""
        self.transfer()

    def transfer(self) -> Transfer:
        """Hand over the rows of this step and start again at handle 0."""
        with self._lock:
            groups, self._groups, self._count = self._groups, [], 0
        return Transfer(groups)

    def peek(self) -> Transfer:
        """The rows so far; the step goes on."""
        with self._lock:
            return Transfer(list(self._groups))

    @staticmethod
    def _rows_on_host(group: list[Any], eps: Any, scale: Any) -> Matrix:
        rows = np.empty((len(group), WIDTH))
        factor = 1.0 if scale is None else host.number(scale)
        host.rows(group, host.number(eps) * factor, rows)
        if scale is not None:
            unscale(rows, factor)
        return rows

    @staticmethod
    def _rows_on_device(group: list[Any], eps: Any, scale: Any) -> Any:
        if scale is None:
            return device_rows(group, eps)
        rows = device_rows(group, eps * scale)
        return ops.concat((rows[:, :MIN], rows[:, MIN:SUMSQ] / scale, rows[:, SUMSQ:] / scale / scale), 1)

    def _append(self, rows: Any, count: int) -> range:
        with self._lock:
            handles = range(self._count, self._count + count)
            self._groups.append((handles, rows))
            self._count = handles.stop
        return handles
