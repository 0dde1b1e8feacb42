"""The plain strided tensor that holds a tensor's values."""

from __future__ import annotations

from typing import Any

import torch

_FLOAT8 = frozenset(
    dtype
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(dtype := getattr(torch, name), torch.dtype)
)
_FLOATS = ("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128")
_INTEGERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_NUMBERS = frozenset(getattr(torch, name) for name in _FLOATS + _INTEGERS if hasattr(torch, name)) | _FLOAT8
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def unsupported_reason(tensor: Any) -> str | None:
    """See :func:`msmon_stats.unsupported_reason`."""
    if tensor.is_meta:
        return "a tensor on the meta device holds no data"
    if tensor.is_nested:
        return "a nested tensor has no common layout"
    if tensor.is_quantized:
        return f"quantized values ({tensor.dtype}) have to be dequantized first"
    if tensor.dtype not in _NUMBERS:
        return f"values of dtype {tensor.dtype} are not numbers"
    return None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that lies on this rank; any other tensor itself. Detached."""
    part = getattr(tensor, "_local_tensor", None)
    return (tensor if part is None else part).detach()


def stored(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Stored values of a local tensor as real numbers or bools, and the number of implicit zeros beside them."""
    implicit = 0
    if tensor.layout in _SPARSE:
        numel = tensor.numel()
        # Entries of one position may occur several times; their sum is the value.
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
        implicit = numel - tensor.numel()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype in _FLOAT8:
        tensor = tensor.to(torch.float32)
    elif tensor.is_complex():
        tensor = tensor.to(torch.complex64).abs() if tensor.dtype is torch.complex32 else tensor.abs()
    return tensor, implicit
