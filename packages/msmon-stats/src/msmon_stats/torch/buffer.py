"""All partials of a step in one buffer a device, and one copy of it to the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats.choice import choose
from msmon_stats.fields import MIN, SUMSQ, WIDTH
from msmon_stats.pages import Pages
from msmon_stats.rows import Matrix, unscale
from msmon_stats.torch.partials import number, usable_kernels, write_rows
from msmon_stats.torch.values import address_of, local, plain, unsupported_reason

_HOST = torch.device("cpu")


class Transfer:
    """The copies to the host of one step's rows, under way."""

    def __init__(self, copies: list[tuple[list[int], Callable[[], Matrix]]]) -> None:
        self._copies = copies

    def matrix(self) -> Matrix:
        """Wait for the copies: float64 `[n, 8]` on the host; the row index is the handle."""
        if len(self._copies) == 1:
            return self._copies[0][1]()
        result = np.zeros((sum(len(handles) for handles, _ in self._copies), WIDTH))
        for handles, wait in self._copies:
            result[handles] = wait()
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

    def __init__(self, *, kernel: str | None = None) -> None:
        """`kernel` forces an implementation, see `msmon_stats.partial`; the choice is made once, here."""
        self._kernel = kernel
        self._lock = threading.Lock()
        self._pages: dict[torch.device, Pages] = {}
        self._count = 0
        self._expected: dict[torch.device, int] = {}
        self._kernels: dict[str, str] = {}
        self._compiled = self._kernel_for("cpu") == "cpu"
        if self._compiled:
            from msmon_stats import cpu
            from msmon_stats.torch import host

            self._host, self._cpu = host, cpu

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
                page, start, address, handle = self._take(_HOST, 1)
            address += start * self._host.ROW_BYTES
            self._cpu.run_one(dtype, data, tensor.numel(), eps, address, (tensor, page))
            return [handle]
        found = self._host.same_dtype(tensors)
        if found is None:
            return None
        dtype, addresses, sizes = found
        with self._lock:
            page, start, address, first = self._take(_HOST, len(tensors))
        self._cpu.run_many(dtype, addresses, sizes, eps, address + start * self._host.ROW_BYTES, (tensors, page))
        return list(range(first, first + len(tensors)))

    def _measure_any(self, tensors: Sequence[Any], eps: Any, scale: Any) -> list[int]:
        handles = [-1] * len(tensors)
        groups: dict[torch.device, list[int]] = {}
        parts = [local(tensor) for tensor in tensors]
        for i, part in enumerate(parts):
            if (plain(part) is not None and address_of(part) is not None) or unsupported_reason(tensors[i]) is None:
                groups.setdefault(part.device, []).append(i)
        for device, members in groups.items():
            with self._lock:
                page, start, _, first = self._take(device, len(members))
            for row, i in enumerate(members):
                handles[i] = first + row
            group = [parts[i] for i in members]
            rows = page[start : start + len(members)]
            if device.type == "cpu":
                self._measure_on_host(group, eps, scale, rows)
            else:
                write_rows(group, eps if scale is None else eps * scale, rows, self._kernel_for(device.type))
                if scale is not None:
                    rows[:, MIN:].div_(scale)
                    rows[:, SUMSQ].div_(scale)
        return handles

    def _measure_on_host(self, group: list[torch.Tensor], eps: Any, scale: Any, rows: Matrix) -> None:
        factor = 1.0 if scale is None else number(scale)
        if self._compiled:
            self._host.rows(group, number(eps) * factor, rows)
        else:
            write_rows(group, eps if scale is None else eps * scale, torch.from_numpy(rows), "operators")
        if scale is not None:
            unscale(rows, factor)

    def put(self, values: torch.Tensor) -> int:
        """Let other float64 numbers on a device ride in the same transfer, 8 in a row.

        Returns:
            The handle of the first row; those of further ones count up from it. What stays free of the last is 0.
        """
        values = values.detach().reshape(-1)
        count = -(-values.numel() // WIDTH)
        with self._lock:
            page, start, _, handle = self._take(values.device, count)
        rows = page[start : start + count].reshape(-1)
        if values.device.type == "cpu":
            rows[: values.numel()] = values.numpy()
            rows[values.numel() :] = 0.0
        else:
            rows[: values.numel()] = values
            rows[values.numel() :].zero_()
        return handle

    def transfer(self) -> Transfer:
        """Begin one copy a device, without waiting, and start again at handle 0. Measuring may go on at once."""
        with self._lock:
            pages, self._pages, self._count = self._pages, {}, 0
            self._expected = {device: rows.count for device, rows in pages.items()}
        return _begin(pages)

    def peek(self) -> Transfer:
        """Begin a copy of the rows so far; the step goes on."""
        with self._lock:
            return _begin(self._pages)

    def _take(self, device: torch.device, count: int) -> tuple[Any, int, int, int]:
        pages = self._pages.get(device) or Pages(_allocator(device), self._expected.get(device, 0))
        first = self._count
        taken = pages.take(count, first)
        self._pages[device] = pages
        self._count += count
        return *taken, first

    def _kernel_for(self, device_type: str) -> str:
        kernel = self._kernels.get(device_type)
        if kernel is None:
            usable = usable_kernels(device_type)
            # A kernel forced for one kind of device leaves the others with their own choice.
            wish = self._kernel if self._kernel in usable else None
            kernel = self._kernels[device_type] = choose(wish, usable)
        return kernel


def _begin(pages: dict[torch.device, Pages]) -> Transfer:
    return Transfer([(rows.handles(), _start_copy(device, rows.filled())) for device, rows in pages.items()])


def _allocator(device: torch.device) -> Callable[[int], tuple[Any, int]]:
    def on_host(rows: int) -> tuple[Any, int]:
        page = np.empty((rows, WIDTH))
        return page, page.ctypes.data

    def on_device(rows: int) -> tuple[Any, int]:
        return torch.empty((rows, WIDTH), dtype=torch.float64, device=device), 0

    return on_host if device.type == "cpu" else on_device


def _start_copy(device: torch.device, pages: list[Any]) -> Callable[[], Matrix]:
    """Begin the copy of one device's rows; what is returned waits for it and gives them."""
    if device.type == "cpu":
        return lambda: pages[0] if len(pages) == 1 else np.concatenate(pages)
    rows = pages[0] if len(pages) == 1 else torch.cat(pages)
    if device.type != "cuda":
        host = rows.to("cpu", non_blocking=True)
        backend = getattr(torch, device.type, None)
        if backend is not None and hasattr(backend, "Event"):
            done = backend.Event()
            done.record()
            return lambda: (done.synchronize(), host.numpy())[1]
        return lambda: host.numpy()
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    with torch.cuda.device(device):
        host.copy_(rows, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

    def wait() -> Matrix:
        done.synchronize()
        return np.array(host.numpy())

    return wait
