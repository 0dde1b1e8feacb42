"""All partials of a step in one buffer a device, and one copy of it to the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from msmon_stats.fields import DEFAULT_EPS, WIDE, WIDTH
from msmon_stats.rows import Matrix
from msmon_stats.torch.devices import is_capturing
from msmon_stats.torch.float32_rows import Float32Rows
from msmon_stats.torch.float64_rows import DeviceRows, Float64Copy, HostRows
from msmon_stats.torch.kernels import chosen_kernel
from msmon_stats.torch.values import address_of, local, plain, unsupported_reason


class _Copy(Protocol):
    def write(self, result: Matrix) -> None:
        """Wait for the copy, and write the rows into float64 `[n, 8]` (or `[n, 10]`), each to its handle."""


class Transfer:
    """The copies to the host of one step's rows, under way."""

    def __init__(self, count: int, width: int, copies: Sequence[_Copy]) -> None:
        self._count = count
        self._width = width
        self._copies = copies

    def matrix(self) -> Matrix:
        """Wait for the copies: float64 `[n, 8]` (with fingerprints `[n, 10]`) on the host; the index is the handle."""
        if len(self._copies) == 1 and isinstance(self._copies[0], Float64Copy):
            return self._copies[0].rows()
        result = np.zeros((self._count, self._width))
        for copy in self._copies:
            copy.write(result)
        return result


class PartialBuffer:
    """Collects the partials of a step on their devices and brings them to the host in one copy a device.

    Measuring launches work and returns; nothing waits for a device before `Transfer.matrix`. Safe to use from
    several threads, but `transfer` has to come after the measurements it is to include.

    >>> import torch
    >>> buffer = PartialBuffer()
    >>> buffer.measure([torch.ones(3), torch.zeros(2)], 1e-8)
    [0, 1]
    >>> buffer.transfer().matrix()[:, 0].tolist()
    [3.0, 2.0]
    """

    def __init__(self, *, kernel: str | None = None, fingerprint: bool = False) -> None:
        """Args:
        kernel: forces an implementation, see `msmon_stats.partial`, on the devices that have it.
        fingerprint: take fingerprints as well.
        """
        self.fingerprint = fingerprint
        self._width = WIDE if fingerprint else WIDTH
        self._kernel = kernel
        self._lock = threading.Lock()
        self._count = 0
        self._host_rows = HostRows(chosen_kernel(kernel, "cpu"), self._width)
        self._rows: dict[torch.device, Any] = {torch.device("cpu"): self._host_rows}
        self._accelerators: list[torch.device] = []
        self._compiled = chosen_kernel(kernel, "cpu") == "cpu"
        if self._compiled:
            from msmon_stats import cpu
            from msmon_stats.torch import host

            self._host, self._cpu = host, cpu

    def prepare(self, device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
        """Choose and compile what reads tensors of a device and these dtypes, and allocate what lasts longer than a
        step: so none of it is done in a training step. The first call of a process waits for the device.
        """
        if device.type not in ("cpu", "meta"):
            # Of one piece and of many, alone and several at once: kernels are compiled for each.
            for example in (torch.zeros(1 << 19, device=device).to(dtype) for dtype in dtypes):
                for tensors in ([example[:1]], [example], [example[:1]] * 2, [example] * 2):
                    self.measure(tensors, DEFAULT_EPS)
            self.discard()

    def measure(self, tensors: Sequence[Any], eps: Any, scale: Any = None) -> list[int]:
        """Compute the partials of tensors.

        Args:
            tensors: torch tensors, on any devices.
            eps: elements with `abs(x) < eps` count as zeros; a number or a 0-d tensor on the tensors' device.
            scale: the values are multiples of the wanted ones by this positive number or 0-d tensor (a loss scale);
                the rows are those of `value / scale`.

        Returns:
            A handle for each tensor, its row in `Transfer.matrix`; -1 for an unsupported one.
        """
        if self._compiled and scale is None and isinstance(eps, (float, int)) and len(tensors) > 0:
            handles = self._measure_plain(tensors, eps)
            if handles is not None:
                return handles
        return self._measure_any(tensors, eps, scale)

    def _measure_plain(self, tensors: Sequence[Any], eps: float) -> list[int] | None:
        """The short way for contiguous tensors in the memory of the host; None for others."""
        if len(tensors) == 1:
            tensor = tensors[0]
            dtype = self._host.plain_on_host(tensor)
            data = None if dtype is None else address_of(tensor)
            if dtype is None or data is None:
                return None
            with self._lock:
                (page, start, address), handle = self._reserve(self._host_rows, 1)
            address += start * 8 * self._width
            self._cpu.run_one(dtype, data, tensor.numel(), eps, address, (tensor, page), width=self._width)
            return [handle]
        found = self._host.same_dtype(tensors)
        if found is None:
            return None
        dtype, addresses, sizes = found
        with self._lock:
            (page, start, address), first = self._reserve(self._host_rows, len(tensors))
        address += start * 8 * self._width
        self._cpu.run_many(dtype, addresses, sizes, eps, address, (tensors, page), width=self._width)
        return list(range(first, first + len(tensors)))

    def _measure_any(self, tensors: Sequence[Any], eps: Any, scale: Any) -> list[int]:
        handles = [-1] * len(tensors)
        groups: dict[torch.device, list[int]] = {}
        parts = [local(tensor) for tensor in tensors]
        for i, part in enumerate(parts):
            if (plain(part) is not None and address_of(part) is not None) or unsupported_reason(part) is None:
                groups.setdefault(part.device, []).append(i)
        for device, members in groups.items():
            if is_capturing(device):
                continue
            rows = self._rows_of(device)
            with self._lock:
                place, first = self._reserve(rows, len(members))
            for row, i in enumerate(members):
                handles[i] = first + row
            rows.measure([parts[i] for i in members], eps, scale, place)
        return handles

    def put(self, values: torch.Tensor) -> int:
        """Let other numbers on a device ride in the same transfer, as many in a row as it has columns.

        Returns:
            The handle of the first row; those of further ones count up from it. What stays free of the last is 0.
            -1 while the device is captured into a graph.
        """
        if is_capturing(values.device):
            return -1
        values = values.detach().reshape(-1)
        rows = self._rows_of(values.device)
        with self._lock:
            place, handle = self._reserve(rows, -(-values.numel() // self._width))
        rows.put(values, place)
        return handle

    def is_capturing(self) -> bool:
        """Whether a device that was measured or prepared captures into a graph what is launched now.

        Nothing is measured meanwhile: it would be run again with the graph, whose memory is not ours.
        """
        return bool(self._accelerators) and any(map(is_capturing, self._accelerators))

    def discard(self) -> None:
        """Forget the rows so far and start again at handle 0; nothing is launched."""
        with self._lock:
            self._reset()

    def transfer(self) -> Transfer:
        """Begin one copy a device, without waiting, and start again at handle 0. Measuring may go on at once."""
        with self._lock:
            found = self._begin()
            self._reset()
        return found

    def peek(self) -> Transfer:
        """Begin a copy of the rows so far; the step goes on."""
        with self._lock:
            return self._begin()

    def _begin(self) -> Transfer:
        return Transfer(self._count, self._width, [rows.begin() for rows in self._rows.values() if rows.is_used])

    def _reset(self) -> None:
        for rows in self._rows.values():
            rows.reset()
        self._count = 0

    def _reserve(self, rows: Any, count: int) -> tuple[Any, int]:
        first = self._count
        place = rows.reserve(count, first)
        self._count += count
        return place, first

    def _rows_of(self, device: torch.device) -> Any:
        rows = self._rows.get(device)
        if rows is None:
            kernel = chosen_kernel(self._kernel, device.type)
            width = self._width
            made = Float32Rows(device, width) if kernel == "float32" else DeviceRows(device, kernel, width)
            with self._lock:
                rows = self._rows.setdefault(device, made)
                self._accelerators = [one for one in self._rows if one.type != "cpu"]
        return rows
