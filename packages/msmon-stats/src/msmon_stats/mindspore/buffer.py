"""All partials of a step and their transfer to the host, for MindSpore."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.mindspore import host
from msmon_stats.mindspore.float32_rows import Float32Copy, Float32Rows
from msmon_stats.mindspore.partials import chosen_kernel
from msmon_stats.mindspore.values import on_host, unsupported_reason
from msmon_stats.rows import Matrix, unscale


class Transfer:
    """The rows of one step on their way to the host."""

    def __init__(
        self, count: int, width: int, groups: Sequence[tuple[range, Matrix]], copy: Float32Copy | None
    ) -> None:
        self._count = count
        self._width = width
        self._groups = groups
        self._copy = copy

    def matrix(self) -> Matrix:
        """Wait for the copy: float64 `[n, 8]` on the host, with fingerprints `[n, 10]`; the row index is the handle."""
        result = np.zeros((self._count, self._width))
        if self._copy is not None:
            self._copy.write(result)
        for handles, rows in self._groups:
            result[handles] = rows
        return result


class PartialBuffer:
    """Collects the partials of a step. See `msmon_stats.torch.PartialBuffer`."""

    def __init__(self, *, kernel: str | None = None, fingerprint: bool = False) -> None:
        """`kernel` forces an implementation, see `msmon_stats.partial`, where the tensors lie that it can read;
        `fingerprint` takes fingerprints as well."""
        self.fingerprint = fingerprint
        self._width = WIDE if fingerprint else WIDTH
        self._kernels = {is_host: chosen_kernel(kernel, is_host) for is_host in (True, False)}
        self._lock = threading.RLock()
        self._groups: list[tuple[range, Matrix]] = []
        self._count = 0
        self._rows = Float32Rows(self._width)

    def measure(self, tensors: Sequence[Any], eps: Any, scale: Any = None) -> list[int]:
        """Compute partials; a handle for each tensor, -1 for an unsupported one."""
        handles = [-1] * len(tensors)
        by_kernel: dict[str, list[int]] = {}
        for i, tensor in enumerate(tensors):
            if unsupported_reason(tensor) is None:
                by_kernel.setdefault(self._kernels[on_host(tensor)], []).append(i)
        for kernel, members in by_kernel.items():
            group = [tensors[i] for i in members]
            if kernel == "float32":
                given = self._reserve(len(group))
                self._rows.measure(group, host.number(eps), scale, given.start)
            else:
                given = self._append(self._rows_on_host(group, eps, scale, kernel))
            for i, handle in zip(members, given, strict=True):
                handles[i] = handle
        return handles

    def put(self, values: Any) -> int:
        """Let numbers ride in the same transfer; see `msmon_stats.torch.PartialBuffer.put`."""
        flat = values.reshape(-1)
        count = max(-(-flat.shape[0] // self._width), 1)
        if on_host(values):
            rows = np.zeros(count * self._width)
            rows[: flat.shape[0]] = flat.asnumpy()
            return self._append(rows.reshape(count, self._width))[0]
        first = self._reserve(count)[0]
        self._rows.put(flat, first)
        return first

    def is_capturing(self) -> bool:
        """Never: graphs of MindSpore run no Python."""
        return False

    def discard(self) -> None:
        """Forget the rows so far and start again at handle 0."""
        with self._lock:
            self._groups, self._count = [], 0
            self._rows.reset()

    def transfer(self) -> Transfer:
        """Hand over the rows of this step and start again at handle 0."""
        with self._lock:
            transfer = self.peek()
            self.discard()
        return transfer

    def peek(self) -> Transfer:
        """The rows so far; the step goes on."""
        with self._lock:
            copy = self._rows.begin() if self._rows.is_used else None
            return Transfer(self._count, self._width, list(self._groups), copy)

    def _rows_on_host(self, group: list[Any], eps: Any, scale: Any, kernel: str) -> Matrix:
        rows = np.empty((len(group), self._width))
        factor = 1.0 if scale is None else host.number(scale)
        host.rows(group, host.number(eps) * factor, rows, kernel)
        if scale is not None:
            unscale(rows, factor)
        return rows

    def _append(self, rows: Matrix) -> range:
        with self._lock:
            handles = self._take(len(rows))
            self._groups.append((handles, rows))
        return handles

    def _reserve(self, count: int) -> range:
        with self._lock:
            return self._take(count)

    def _take(self, count: int) -> range:
        handles = range(self._count, self._count + count)
        self._count = handles.stop
        return handles
