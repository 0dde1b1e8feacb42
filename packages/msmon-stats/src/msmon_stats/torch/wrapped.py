"""The values of tensors that hold other tensors: of several lengths in one, scaled float8, quantised."""

from __future__ import annotations

from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# What wrappers call it, in the order in which they are tried; what plain tensors have of the name does something else.
_UNPACKS = ("dequantize", "to_original_precision", "get_original_weight")


def inside(tensor: Any) -> Any:
    """The values as a tensor that has them in its own memory; the tensor itself, where there is none to be had.

    >>> tensors = [torch.ones(2, 3), torch.ones(4, 3)]
    >>> inside(torch.nested.nested_tensor(tensors, layout=torch.jagged)).shape
    torch.Size([6, 3])
    """
    if tensor.is_nested:
        return _joined(tensor)
    if type(tensor) in _PLAIN:
        return tensor
    with torch.no_grad():
        try:
            values = _unwrapped(tensor)
        # Of a third party: what it raises where it cannot.
        except Exception:
            return tensor
    return values if type(values) in _PLAIN else tensor


def failure(tensor: Any) -> str | None:
    """Why the values inside of a wrapper cannot be had, where its own method raised; None where it has not."""
    if type(tensor) in _PLAIN or tensor.is_nested:
        return None
    with torch.no_grad():
        try:
            _unwrapped(tensor)
        except Exception as error:
            said = str(error).partition("\n")[0][:200]
            return f"a {type(tensor).__name__} whose values cannot be had: {type(error).__name__}: {said}"
    return None


def _joined(tensor: Any) -> Any:
    """One after the other. With holes between them it takes a synchronization to know which values count."""
    whole = tensor.is_contiguous() and getattr(tensor, "_lengths", None) is None
    return tensor.detach().values() if whole else tensor


def _unwrapped(tensor: Any) -> Any:
    cls = type(tensor)
    for name in _UNPACKS:
        method = getattr(cls, name, None)
        if method is not None and method is not getattr(torch.Tensor, name, None):
            return method(tensor)
    flatten = getattr(cls, "__tensor_flatten__", None)
    if flatten is None:
        return tensor
    found = flatten(tensor)
    names = found[0] if isinstance(found, tuple) else found
    inner = getattr(tensor, names[0])
    # A wrapper around the whole, such as that by which FSDP casts to float8 while it gathers.
    same = len(names) == 1 and inner.shape == tensor.shape and inner.dtype == tensor.dtype
    return inner.detach() if same else tensor
