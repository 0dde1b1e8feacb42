"""The partials of a step in float64 rows: on the host, and on devices where a kernel of ours runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats.fields import MIN, SUMSQ, WIDTH
from msmon_stats.pages import Pages
from msmon_stats.rows import Matrix, unscale
from msmon_stats.torch.copies import HostCopy
from msmon_stats.torch.devices import current_stream
from msmon_stats.torch.kernels import number
from msmon_stats.torch.partials import write_rows

Place = tuple[Any, int, int]
"""A page of rows, the first row in it, and the address of the page where it is on the host."""


class Float64Copy:
    """The copy of a step's rows to the host, under way.

    Args:
        handles: the first and the number of handles that were given together, in the order of the rows.
        wait: waits for the rows and gives them.
    """

    def __init__(self, handles: Sequence[tuple[int, int]], wait: Callable[[], Matrix]) -> None:
        self._handles = handles
        self.rows = wait

    def write(self, result: Matrix) -> None:
        """Wait for the copy, and write the rows into float64 `[n, 8]` (or `[n, 10]`), each to its handle."""
        rows, start = self.rows(), 0
        for first, count in self._handles:
            result[first : first + count] = rows[start : start + count]
            start += count


class HostRows:
    """Rows in the memory of the host, of `width` columns."""

    def __init__(self, kernel: str, width: int) -> None:
        self._kernel = kernel
        self._width = width
        self._handles: list[tuple[int, int]] = []
        self._pages = Pages(self._page)

    def reserve(self, count: int, first: int) -> Place:
        """Rows for so many handles, which count up from `first`."""
        place = self._pages.take(count)
        self._handles.append((first, count))
        return place

    def measure(self, tensors: Sequence[torch.Tensor], eps: Any, scale: Any, place: Place) -> None:
        """Write the rows of supported local tensors."""
        page, start, _ = place
        rows = page[start : start + len(tensors)]
        factor = 1.0 if scale is None else number(scale)
        if self._kernel == "cpu":
            from msmon_stats.torch import host

            host.rows(tensors, number(eps) * factor, rows)
        else:
            write_rows(tensors, number(eps) * factor, torch.from_numpy(rows), self._kernel)
        if scale is not None:
            unscale(rows, factor)

    def put(self, values: torch.Tensor, place: Place) -> None:
        """Write other numbers into rows; what stays free of the last is 0."""
        page, start, _ = place
        rows = page[start : start - (-values.numel() // self._width)].reshape(-1)
        rows[: values.numel()] = values.numpy()
        rows[values.numel() :] = 0.0

    @property
    def is_used(self) -> bool:
        """Whether the step has any rows here."""
        return bool(self._handles)

    def begin(self) -> Float64Copy:
        """Begin to copy what there is so far."""
        pages = self._pages.filled()
        return Float64Copy(list(self._handles), lambda: pages[0] if len(pages) == 1 else np.concatenate(pages))

    def reset(self) -> None:
        """The step is over."""
        self._handles, self._pages = [], Pages(self._page, self._pages.count)

    def _page(self, rows: int) -> tuple[Matrix, int]:
        page = np.empty((rows, self._width))
        return page, page.ctypes.data


class DeviceRows:
    """Rows on a device that has float64, of `width` columns. A step's rows may be written on several of its streams."""

    def __init__(self, device: torch.device, kernel: str, width: int) -> None:
        self._device = device
        self._kernel = kernel
        self._width = width
        self._handles: list[tuple[int, int]] = []
        self._pages = Pages(self._page)
        self._streams: list[Any] = []
        self._copies: list[HostCopy] = []

    def reserve(self, count: int, first: int) -> Place:
        """See `HostRows`."""
        place = self._pages.take(count)
        self._handles.append((first, count))
        return place

    def measure(self, tensors: Sequence[torch.Tensor], eps: Any, scale: Any, place: Place) -> None:
        """See `HostRows`."""
        self._note_stream()
        page, start, _ = place
        rows = page[start : start + len(tensors)]
        write_rows(tensors, eps if scale is None else eps * scale, rows, self._kernel)
        if scale is not None:
            rows[:, MIN:WIDTH].div_(scale)
            rows[:, SUMSQ].div_(scale)

    def put(self, values: torch.Tensor, place: Place) -> None:
        """See `HostRows`."""
        self._note_stream()
        page, start, _ = place
        rows = page[start : start - (-values.numel() // self._width)].reshape(-1)
        rows[: values.numel()] = values
        rows[values.numel() :].zero_()

    @property
    def is_used(self) -> bool:
        """See `HostRows`."""
        return bool(self._handles)

    def begin(self) -> Float64Copy:
        """See `HostRows`."""
        stream = current_stream(self._device)
        for other in self._streams:
            if other != stream:
                stream.wait_stream(other)
        copy = HostCopy(self._device, self._pages.filled())
        # Also where nobody waits for it, its pages are used until it is over.
        self._copies = [*(one for one in self._copies if not one.is_over), copy]
        return Float64Copy(list(self._handles), copy.wait)

    def reset(self) -> None:
        """See `HostRows`."""
        self._handles, self._pages, self._streams = [], Pages(self._page, self._pages.count), []

    def _note_stream(self) -> None:
        stream = current_stream(self._device)
        if stream is not None and stream not in self._streams:
            self._streams.append(stream)

    def _page(self, rows: int) -> tuple[torch.Tensor, int]:
        return torch.empty((rows, self._width), dtype=torch.float64, device=self._device), 0
