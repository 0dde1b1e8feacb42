"""All partials of a step in one array, for numpy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.numpy.partials import partial_many
from msmon_stats.numpy.values import unsupported_reason
from msmon_stats.rows import Matrix, unscale


class Transfer:
    """The rows of one step. They lie on the host already."""

    def __init__(self, rows: list[Matrix], width: int) -> None:
        self._rows = rows
        self._width = width

    def matrix(self) -> Matrix:
        """float64 `[n, 8]`, with fingerprints `[n, 10]`; the row index is the handle."""
        return np.concatenate(self._rows) if self._rows else np.empty((0, self._width))


class PartialBuffer:
    """Collects the partials of a step. See `msmon_stats.torch.PartialBuffer`."""

    def __init__(self, *, fingerprint: bool = False) -> None:
        self.fingerprint = fingerprint
        self._width = WIDE if fingerprint else WIDTH
        self._lock = threading.Lock()
        self._rows: list[Matrix] = []
        self._count = 0

    def measure(self, tensors: Sequence[Any], eps: Any, scale: Any = None) -> list[int]:
        """Compute partials; a handle for each array, -1 for an unsupported one."""
        supported = [i for i, tensor in enumerate(tensors) if unsupported_reason(tensor) is None]
        handles = [-1] * len(tensors)
        if supported:
            scale = 1.0 if scale is None else float(scale)
            rows = partial_many([tensors[i] for i in supported], float(eps) * scale, fingerprint=self._width == WIDE)
            unscale(rows, scale)
            first = self._append(rows)
            for row, i in enumerate(supported):
                handles[i] = first + row
        return handles

    def put(self, values: Any) -> int:
        """Let other numbers ride along, as many in a row as it has columns, the last filled up with 0.

        Returns the handle of the first row.
        """
        flat = np.asarray(values, np.float64).reshape(-1)
        rows = np.zeros((-(-flat.size // self._width), self._width))
        rows.reshape(-1)[: flat.size] = flat
        return self._append(rows)

    def _append(self, rows: Matrix) -> int:
        with self._lock:
            first = self._count
            self._rows.append(rows)
            self._count += len(rows)
        return first

    def transfer(self) -> Transfer:
        """Hand over the rows of this step and start again at handle 0."""
        with self._lock:
            rows, self._rows, self._count = self._rows, [], 0
        return Transfer(rows, self._width)

    def peek(self) -> Transfer:
        """The rows so far; the step goes on."""
        with self._lock:
            return Transfer(list(self._rows), self._width)
