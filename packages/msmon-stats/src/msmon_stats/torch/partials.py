"""Partials of torch tensors: checks, choice of kernel, output."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from msmon_stats.choice import choose, has_cpu_kernel, has_triton
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.fields import DEFAULT_EPS, MAX, MIN, SUM, WIDTH
from msmon_stats.torch import operators
from msmon_stats.torch.values import address_of, local, plain, unsupported_reason

_log = logging.getLogger("msmon_stats")


@cache
def usable_kernels(device_type: str) -> tuple[str, ...]:
    """The kernels that can read tensors on a device, the first one is the automatic choice."""
    if device_type == "cpu":
        kernels = ("cpu", "operators") if has_cpu_kernel() else ("operators",)
        return (*kernels, "triton") if os.environ.get("TRITON_INTERPRET") == "1" and has_triton() else kernels
    if device_type == "cuda":
        return ("triton", "operators") if has_triton() and _triton_works(device_type) else ("operators",)
    # Triton serves further accelerators; there the operators are the safe choice.
    return ("operators", "triton") if has_triton() else ("operators",)


def _triton_works(device_type: str) -> bool:
    """Triton needs a compiler on the machine, so it is tried once."""
    try:
        from msmon_stats.torch import triton_kernels

        probe = torch.zeros(1, device=device_type)
        triton_kernels.write_rows(
            [probe, probe], on_device(DEFAULT_EPS, probe.device), probe.new_empty((2, WIDTH), dtype=torch.float64)
        )
    except Exception:
        _log.warning("the Triton kernels do not work here; slower operators take their place", exc_info=True)
        return False
    return True


def partial(
    tensor: torch.Tensor, eps: Any = DEFAULT_EPS, *, out: torch.Tensor | None = None, kernel: str | None = None
) -> torch.Tensor:
    """See `msmon_stats.partial`."""
    rows = partial_many([tensor], eps, out=None if out is None else out.unsqueeze(0), kernel=kernel)
    return rows[0] if out is None else out


def partial_many(
    tensors: Sequence[torch.Tensor],
    eps: Any = DEFAULT_EPS,
    *,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """See `msmon_stats.partial_many`."""
    parts = [local(tensor) for tensor in tensors]
    for part in parts:
        # The short question answers for nearly all tensors.
        if plain(part) is not None and address_of(part) is not None:
            continue
        reason = unsupported_reason(part)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    device = parts[0].device
    if any(part.device != device for part in parts):
        raise ValueError(f"tensors on several devices: {', '.join(sorted({str(part.device) for part in parts}))}")
    chosen = choose(kernel, usable_kernels(device.type))
    if out is None:
        out = torch.empty((len(parts), WIDTH), dtype=torch.float64, device=device)
    elif (
        out.shape != (len(parts), WIDTH)
        or out.dtype != torch.float64
        or not out.is_contiguous()
        or out.device != device
    ):
        raise ValueError(
            f"out must be a contiguous float64 [{len(parts)}, {WIDTH}] on {device}, "
            f"not {out.dtype} {list(out.shape)} on {out.device}"
        )
    write_rows(parts, eps, out, chosen)
    return out


def write_rows(parts: Sequence[torch.Tensor], eps: Any, out: torch.Tensor, kernel: str) -> None:
    """Partials of supported local tensors on one device."""
    if kernel == "cpu":
        from msmon_stats.torch import host

        host.rows(parts, number(eps), out.numpy())
        return
    with torch.no_grad():
        if kernel == "triton":
            from msmon_stats.torch import triton_kernels

            triton_kernels.write_rows(parts, on_device(eps, out.device), out)
            return
        for part, row in zip(parts, out, strict=True):
            operators.accumulate(part, eps, row)


_constants: dict[tuple[float, torch.device], torch.Tensor] = {}


def on_device(value: Any, device: torch.device) -> torch.Tensor:
    """A number, or a 0-d tensor, as a 0-d float64 tensor on a device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, torch.float64, non_blocking=True)
    key = float(value), device
    constant = _constants.get(key)
    if constant is None:
        if len(_constants) > 64:
            _constants.clear()
        constant = _constants[key] = torch.full((), key[0], dtype=torch.float64, device=device)
    return constant


def number(value: Any) -> float:
    """A number, or a 0-d tensor, as a float; of a tensor on the host without an operator of torch."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    value = value.detach()
    if value.is_cpu and value.dtype is not torch.bfloat16:
        return float(value.numpy())
    return float(value)


def merge(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """See `msmon_stats.merge`."""
    total = a + b
    low = torch.minimum(a[..., MIN:MAX], b[..., MIN:MAX])
    high = torch.maximum(a[..., MAX:SUM], b[..., MAX:SUM])
    return torch.cat((total[..., :MIN], low, high, total[..., SUM:]), dim=-1)


def to_host(matrix: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Wait for the device and copy the partials to the host."""
    return matrix.cpu().numpy()
