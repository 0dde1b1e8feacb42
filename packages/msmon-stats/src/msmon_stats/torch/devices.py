"""What a device can do, asked of the device; its streams and events, whatever the device is."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import torch


@cache
def has_float64(device_type: str) -> bool:
    """Whether a kind of device computes in float64. The first call waits for the device: some refuse, and some take
    float32 in silence."""
    if device_type in ("cpu", "meta"):
        return True
    try:
        ones = torch.ones(2, device=device_type).to(torch.float64)
        return ones.dtype is torch.float64 and float((ones + 2.0**-40).sum()) == 2.0 + 2.0**-39
    except Exception:  # whatever a backend raises where it cannot
        return False


def widest(device: torch.device) -> torch.dtype:
    """The floating point dtype with the most digits that a device computes in."""
    return torch.float64 if has_float64(device.type) else torch.float32


def accelerators() -> list[str]:
    """The kinds of devices beside the host that torch can use here."""
    names = ("cuda", "xpu", "mps", torch._C._get_privateuse1_backend_name())
    modules = [(name, getattr(torch.backends if name == "mps" else torch, name, None)) for name in names]
    return [name for name, module in modules if module is not None and module.is_available()]


def backend_of(device: torch.device) -> Any:
    """The module of torch for a kind of device (`torch.cuda`), or None."""
    return None if device.type == "cpu" else getattr(torch, device.type, None)


def entered(device: torch.device) -> Any:
    """A context in which the device is the current one of its kind."""
    enter = getattr(backend_of(device), "device", None)
    return contextlib.nullcontext() if enter is None or device.type == "meta" else enter(device)


def current_stream(device: torch.device) -> Any:
    """The stream on which operators run now, or None where a device has no streams."""
    find = getattr(backend_of(device), "current_stream", None)
    return None if find is None else find(device)


def is_capturing(device: torch.device) -> bool:
    """Whether what is launched now is not run but captured into a graph, to be run again and again."""
    ask = getattr(backend_of(device), "is_current_stream_capturing", None)
    return ask is not None and bool(ask())
