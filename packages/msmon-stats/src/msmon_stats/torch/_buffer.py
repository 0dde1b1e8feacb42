"""All partials of a step in one buffer a device, and one copy of it to the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats._fields import MIN, SUMSQ, WIDTH
from msmon_stats.torch._partial import partial_many
from msmon_stats.torch._values import local, unsupported_reason

Matrix = np.ndarray[Any, np.dtype[np.float64]]
_FIRST_CAPACITY = 256


class _DeviceRows:
    """A growing float64 ``[capacity, 8]`` on one device, and which handle each row answers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows = torch.zeros((_FIRST_CAPACITY, WIDTH), dtype=torch.float64, device=device)
        self.handles: list[int] = []

    def take(self, handles: Sequence[int]) -> torch.Tensor:
        start = len(self.handles)
        self.handles.extend(handles)
        needed = len(self.handles)
        if needed > len(self.rows):
            grown = self.rows.new_zeros((max(needed, 2 * len(self.rows)), WIDTH))
            grown[:start] = self.rows[:start]
            self.rows = grown
        return self.rows[start:needed]


class Transfer:
    """The copies to the host of one step's rows, under way."""

    def __init__(self, copies: list[tuple[list[int], torch.Tensor, Any]]) -> None:
        self._copies = copies

    def matrix(self) -> Matrix:
        """Wait for the copies: float64 ``[n, 8]`` on the host; the row index is the handle."""
        result = np.zeros((sum(len(handles) for handles, _, _ in self._copies), WIDTH))
        for handles, host, done in self._copies:
            if done is not None:
                done.synchronize()
            result[handles] = host.numpy()
        return result


class PartialBuffer:
    """Collects the partials of a step on their devices and brings them to the host in one copy a device.

    >>> import torch
    >>> buffer = PartialBuffer()
    >>> buffer.measure([torch.ones(3), torch.zeros(2)], 1e-8)
    [0, 1]
    >>> buffer.transfer().matrix()[:, 0].tolist()
    [3.0, 2.0]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: dict[torch.device, _DeviceRows] = {}
        self._count = 0

    def measure(self, tensors: Sequence[Any], eps: Any, scale: Any = None) -> list[int]:
        """Compute the partials of tensors.

        Args:
            tensors: torch tensors, on any devices.
            eps: elements with ``abs(x) < eps`` count as zeros; a number or a 0-d tensor on the tensors' device.
            scale: the values are multiples of the wanted ones by this positive number or 0-d tensor (a loss scale);
                the rows are those of ``value / scale``.

        Returns:
            A handle for each tensor, its row in :meth:`Transfer.matrix`; -1 for an unsupported one.
        """
        handles = [-1] * len(tensors)
        groups: dict[torch.device, list[int]] = {}
        for i, tensor in enumerate(tensors):
            if unsupported_reason(tensor) is None:
                groups.setdefault(local(tensor).device, []).append(i)
        for device, members in groups.items():
            with self._lock:
                mine = range(self._count, self._count + len(members))
                self._count = mine.stop
                rows = self._rows_on(device).take(mine)
            for i, handle in zip(members, mine, strict=True):
                handles[i] = handle
            partial_many([tensors[i] for i in members], eps if scale is None else eps * scale, out=rows)
            if scale is not None:
                rows[:, MIN:].div_(scale)
                rows[:, SUMSQ].div_(scale)
        return handles

    def put(self, values: torch.Tensor) -> int:
        """Let up to 8 float64 numbers on a device ride in the same transfer; the columns that stay free are 0."""
        with self._lock:
            handle = self._count
            self._count += 1
            row = self._rows_on(values.device).take([handle])[0]
        row.zero_()
        row[: values.numel()] = values.detach()
        return handle

    def _rows_on(self, device: torch.device) -> _DeviceRows:
        rows = self._devices.get(device)
        if rows is None:
            rows = self._devices[device] = _DeviceRows(device)
        return rows

    def transfer(self) -> Transfer:
        """Begin one copy a device, without waiting, and start again at handle 0. Measuring may go on at once."""
        with self._lock:
            devices, self._devices, self._count = self._devices, {}, 0
        return Transfer([_copy(rows) for rows in devices.values()])


def _copy(rows: _DeviceRows) -> tuple[list[int], torch.Tensor, Any]:
    used = rows.rows[: len(rows.handles)]
    if rows.device.type == "cpu":
        return rows.handles, used, None
    if rows.device.type != "cuda":
        return rows.handles, used.cpu(), None
    host = torch.empty(used.shape, dtype=used.dtype, pin_memory=True)
    host.copy_(used, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(rows.device))
    return rows.handles, host, done
