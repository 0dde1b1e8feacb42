"""Partials of torch tensors: checks, choice of kernel, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats.choice import choose
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.fields import DEFAULT_EPS, MAX, MIN, SUM, WIDE, WIDTH
from msmon_stats.torch import operators
from msmon_stats.torch.devices import has_float64
from msmon_stats.torch.kernels import number, on_device, usable_kernels
from msmon_stats.torch.values import address_of, local, plain, unsupported_reason


def partial(
    tensor: torch.Tensor,
    eps: Any = DEFAULT_EPS,
    *,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
    fingerprint: bool = False,
) -> torch.Tensor:
    """See `msmon_stats.partial`."""
    into = None if out is None else out.unsqueeze(0)
    rows = partial_many([tensor], eps, out=into, kernel=kernel, fingerprint=fingerprint)
    return rows[0] if out is None else out


def partial_many(
    tensors: Sequence[torch.Tensor],
    eps: Any = DEFAULT_EPS,
    *,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
    fingerprint: bool = False,
) -> torch.Tensor:
    """See `msmon_stats.partial_many`."""
    width = WIDE if fingerprint else WIDTH
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
    # Where the device has no float64 the rows are made, and lie, on the host.
    place = device if has_float64(device.type) else torch.device("cpu")
    if out is None:
        out = torch.empty((len(parts), width), dtype=torch.float64, device=place)
    elif (
        out.shape != (len(parts), width) or out.dtype != torch.float64 or not out.is_contiguous() or out.device != place
    ):
        raise ValueError(
            f"out must be a contiguous float64 [{len(parts)}, {width}] on {place}, "
            f"not {out.dtype} {list(out.shape)} on {out.device}"
        )
    write_rows(parts, eps, out, chosen)
    return out


def write_rows(parts: Sequence[torch.Tensor], eps: Any, out: torch.Tensor, kernel: str) -> None:
    """Partials of supported local tensors on one device, with fingerprints if the rows have their columns."""
    if kernel == "cpu":
        from msmon_stats.torch import host

        host.rows(parts, number(eps), out.numpy())
        return
    with torch.no_grad():
        if kernel == "triton":
            from msmon_stats.torch import triton_kernels

            triton_kernels.write_rows(parts, on_device(eps, out.device), out)
        elif kernel == "float32":
            from msmon_stats.torch import float32_rows

            out.copy_(torch.from_numpy(float32_rows.partials(parts, eps, out.shape[1])))
        else:
            for part, row in zip(parts, out, strict=True):
                operators.accumulate(part, eps, row)


def merge(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """See `msmon_stats.merge`."""
    total = a + b
    low = torch.minimum(a[..., MIN:MAX], b[..., MIN:MAX])
    high = torch.maximum(a[..., MAX:SUM], b[..., MAX:SUM])
    # Nobody knows where in the whole the parts begin.
    no_fingerprint = torch.full_like(total[..., WIDTH:], float("nan"))
    return torch.cat((total[..., :MIN], low, high, total[..., SUM:WIDTH], no_fingerprint), dim=-1)


def to_host(matrix: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Wait for the device and copy the partials to the host."""
    return matrix.cpu().numpy()
