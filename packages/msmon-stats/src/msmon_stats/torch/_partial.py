"""Partials of torch tensors: checks, choice of kernel, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats._errors import UnsupportedTensorError
from msmon_stats._fields import DEFAULT_EPS, MAX, MIN, WIDTH
from msmon_stats.torch import _operators
from msmon_stats.torch._values import local, unsupported_reason


def partial(
    tensor: torch.Tensor, eps: Any = DEFAULT_EPS, *, out: torch.Tensor | None = None, kernel: str | None = None
) -> torch.Tensor:
    """See :func:`msmon_stats.partial`."""
    rows = None if out is None else out.unsqueeze(0)
    return partial_many([tensor], eps, out=rows, kernel=kernel)[0]


def partial_many(
    tensors: Sequence[torch.Tensor],
    eps: Any = DEFAULT_EPS,
    *,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """See :func:`msmon_stats.partial_many`."""
    for tensor in tensors:
        reason = unsupported_reason(tensor)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    locals_ = [local(tensor) for tensor in tensors]
    if out is None:
        out = torch.empty((len(locals_), WIDTH), dtype=torch.float64, device=locals_[0].device)
    with torch.no_grad():
        for tensor, row in zip(locals_, out, strict=True):
            _operators.accumulate(tensor, eps, row)
    return out


def merge(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """See :func:`msmon_stats.merge`."""
    return torch.cat(
        (
            a[..., :MIN] + b[..., :MIN],
            torch.minimum(a[..., MIN:MAX], b[..., MIN:MAX]),
            torch.maximum(a[..., MAX : MAX + 1], b[..., MAX : MAX + 1]),
            a[..., MAX + 1 :] + b[..., MAX + 1 :],
        ),
        dim=-1,
    )


def to_host(matrix: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Wait for the device and copy the partials to the host."""
    return matrix.cpu().numpy()
