"""torch's operators for the features."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import cache

import torch

from msmon_stats.features.math import Math
from msmon_stats.float32 import limit
from msmon_stats.torch.devices import has_float64, widest
from msmon_stats.torch.values import local

_constants: dict[tuple[tuple[float, ...], torch.device], torch.Tensor] = {}


@contextlib.contextmanager
def _quiet(tensor: torch.Tensor) -> Iterator[None]:
    # Under autocast a product of float32 tensors would be computed in half precision.
    device_type = tensor.device.type
    full = torch.autocast(device_type, enabled=False) if _has_autocast(device_type) else contextlib.nullcontext()
    with torch.no_grad(), full:
        yield


@cache
def _has_autocast(device_type: str) -> bool:
    try:
        torch.autocast(device_type, enabled=False)
    except RuntimeError:
        return False
    return True


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.float32)


def _constant(numbers: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    key = numbers, like.device
    found = _constants.get(key)
    if found is None:
        if len(_constants) > 64:
            _constants.clear()
        exact = has_float64(like.device.type)
        host = torch.tensor(numbers if exact else [limit(one) for one in numbers], dtype=widest(like.device))
        found = _constants[key] = host if like.is_cpu else host.pin_memory().to(like.device, non_blocking=True)
    return found


def _sum(tensor: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    return tensor.sum() if axis is None else tensor.sum(axis)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(widest(tensor.device))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64 if has_float64(tensor.device.type) else torch.int32)


def _bincount(index: torch.Tensor, slots: int) -> torch.Tensor:
    # Unlike torch.bincount this asks the device for nothing, and it has a deterministic form.
    counts = torch.zeros(slots, dtype=widest(index.device), device=index.device)
    return _whole(counts.index_add_(0, index, counts.new_ones(()).expand(len(index))))


MATH = Math(
    quiet=_quiet,
    plain=lambda tensor: local(tensor).detach(),
    single=_single,
    wide=_wide,
    whole=_whole,
    like=lambda tensor, other: tensor.to(other.dtype),
    exp=torch.exp,
    expm1=torch.expm1,
    log=torch.log,
    sqrt=torch.sqrt,
    sign=torch.sign,
    isnan=torch.isnan,
    where=torch.where,
    minus=lambda a, b, c: torch.addcmul(a, b, c, value=-1),
    norm=lambda tensor: torch.linalg.vector_norm(tensor, dtype=widest(tensor.device)),
    sum=_sum,
    largest=torch.amax,
    largest_size=lambda tensor: torch.linalg.vector_norm(tensor, math.inf),
    stack=lambda tensors: torch.stack(tuple(tensors)),
    constant=_constant,
    arange=lambda stop, like: torch.arange(stop, device=like.device),
    searchsorted=lambda edges, tensor: torch.searchsorted(edges, tensor, right=True),
    bincount=_bincount,
    chunk=lambda tensor: 1 << 16 if tensor.is_cpu else 1 << 21,
)
"""See `msmon_stats.features.math.Math`."""
