"""Copies from a device to the host that somebody waits for later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats.torch.devices import backend_of, entered


class HostCopy:
    """The copy of pages of one dtype to the host, under way."""

    def __init__(self, device: torch.device, pages: Sequence[torch.Tensor]) -> None:
        """Begin the copy, on the device's current stream. The pages are kept until it is done."""
        self._device = device
        self._pages = pages
        self._done = None
        self._host: torch.Tensor | None = None
        event = getattr(backend_of(device), "Event", None)
        if not pages or event is None:
            # Without events nothing says when a copy in the background is over.
            return
        length = sum(len(page) for page in pages)
        host = _pinned((length, *pages[0].shape[1:]), pages[0].dtype)
        with entered(device):
            start = 0
            for page in pages:
                host[start : start + len(page)].copy_(page, non_blocking=True)
                start += len(page)
            done = event()
            done.record()
        self._host, self._done = host, done

    @property
    def is_over(self) -> bool:
        """Whether the device has done everything; asks, and does not wait."""
        return self._done is None or bool(self._done.query())

    def wait(self) -> np.ndarray[Any, Any]:
        """The pages one after the other, on the host. May be called by another thread."""
        if not self._pages:
            return np.empty(0, np.float32)
        if self._host is None or self._done is None:
            return torch.cat([page.to("cpu") for page in self._pages]).numpy()
        with entered(self._device):
            self._done.synchronize()
        return np.array(self._host.numpy())


def _pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        # The limit on locked memory is reached, or the backend pins none: the copy takes longer, and is waited for too.
        return torch.empty(shape, dtype=dtype)
