"""Remembers, within a step, which tensors were read already: an unchanged tensor is not read twice."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Measured:
    """Entries for tensor objects at one version of their content.

    The output of one module is often the input of the next, and the gradient that the optimizer sees is often the
    very tensor that backward left. The key is the tensor object (held weakly) and autograd's version counter, which
    every in-place operation increments. A kernel that writes into a tensor without telling autograd goes unnoticed.

    Example:
        >>> seen = Measured()
        >>> x = torch.ones(3)
        >>> seen.put(x, 5); seen.get(x)
        5
        >>> _ = x.add_(1)
        >>> seen.get(x) is None
        True
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], int, Any]] = {}

    def get(self, tensor: torch.Tensor) -> Any | None:
        """What was stored for the tensor, if its content is still the same; else None."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1] != tensor._version:
            return None
        return entry[2]

    def put(self, tensor: torch.Tensor, value: Any) -> None:
        """Store ``value`` for the tensor as it is now. Tensors without a version counter are not stored."""
        if not tensor.is_inference():
            self._entries[id(tensor)] = (weakref.ref(tensor), tensor._version, value)

    def clear(self) -> None:
        """Forget everything: the step is over."""
        self._entries.clear()


_dtype_names: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """``str(dtype)``, made once."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype)
    return name


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's shape; empty for a nested tensor, whose rows differ in length."""
    return () if tensor.is_nested else tensor.shape
