"""Tensors that stand for values which they do not hold: quantised, wrapped, of another framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from msmon_hooks.momentum import reason_of
from msmon_hooks.torch.mesh_shards import local_part

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# In the order in which they are tried; what plain tensors have of the name does something else.
_UNPACKS = ("dequantize", "to_original_precision", "get_original_weight", "to_dense", "to_tensor")


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor have to be computed before they can be read.

    Example:
        >>> class Own(torch.Tensor): ...
        >>> is_packed(torch.ones(2)), is_packed(torch.ones(2).as_subclass(Own))
        (False, True)
    """
    part = local_part(tensor)
    return type(part) not in _PLAIN or part.is_quantized or getattr(part, "is_paged", False)


def unpacked(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's values as a plain tensor.

    Raises:
        ValueError: there is no way; the message says why.
    """
    return _guarded(tensor, _unpack)


def from_codes(codes: torch.Tensor, book: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values of a block-wise quantised tensor, as bitsandbytes keeps them.

    Args:
        codes: indices into `book`, uint8, any shape.
        book: the values between -1 and 1 that codes stand for, float32 `[256]`.
        scales: the largest value of each block, float32 `[blocks]`; `[n, blocks]` where `codes` are n tensors in one.

    Raises:
        ValueError: they do not fit together.

    Example:
        >>> book = torch.linspace(-1, 1, 256)
        >>> from_codes(torch.tensor([0, 255], dtype=torch.uint8), book, torch.tensor([3.0])).tolist()
        [-3.0, 3.0]
    """
    return _guarded(codes, functools.partial(_decode, book=book, scales=scales))


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    tensor = local_part(tensor)
    if getattr(tensor, "is_paged", False):
        raise ValueError("paged memory, which a device may be writing to")
    if tensor.is_quantized:
        return tensor.dequantize()
    cls = type(tensor)
    for name in _UNPACKS:
        method = getattr(cls, name, None)
        if method is not None and method is not getattr(torch.Tensor, name, None):
            return method(tensor)
    if hasattr(cls, "__tensor_flatten__"):
        raise ValueError(f"a {cls.__name__} says nothing of how to get its values")
    return tensor.as_subclass(torch.Tensor)


def _decode(codes: torch.Tensor, *, book: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    if scales.dim() > 1:
        parts = [_decode(one, book=book, scales=own) for one, own in zip(codes, scales, strict=True)]
        return torch.stack(parts)
    count, blocks = codes.numel(), scales.numel()
    size = _block_size(count, blocks)
    values = book[codes.reshape(-1).int()]
    whole = count - count % size
    values[:whole].view(-1, size).mul_(scales[: whole // size, None])
    values[whole:].mul_(scales[-1])
    return values.view(codes.shape)


def _block_size(count: int, blocks: int) -> int:
    """Blocks have a power of two of elements, only the last one may have fewer."""
    size = 1
    while -(-count // size) > blocks:
        size *= 2
    if -(-count // size) != blocks:
        raise ValueError(f"{blocks} scales for {count} quantised values")
    return size


def _guarded(tensor: torch.Tensor, compute: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    try:
        with torch.no_grad():
            values = compute(tensor)
    except ValueError:
        raise
    except Exception as error:
        name = type(local_part(tensor)).__name__
        raise ValueError(f"a {name} could not be dequantised: {reason_of(error)}") from error
    if type(values) not in _PLAIN:
        raise ValueError(f"a {type(local_part(tensor)).__name__} is dequantised to a {type(values).__name__}")
    return values
