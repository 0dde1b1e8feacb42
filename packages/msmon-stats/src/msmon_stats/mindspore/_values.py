"""Where the values of a MindSpore tensor can be read."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np

_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
_INTEGERS = ("bool_", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_NUMBERS = frozenset(getattr(mindspore, name) for name in _FLOATS + _INTEGERS if hasattr(mindspore, name))
_SPARSE = ("COOTensor", "CSRTensor", "RowTensor")


def unsupported_reason(tensor: Any) -> str | None:
    """See :func:`msmon_stats.unsupported_reason`."""
    if type(tensor).__name__ in _SPARSE:
        return None
    if not isinstance(tensor, mindspore.Tensor):
        return f"a {type(tensor).__name__} holds no values"
    if tensor.dtype not in _NUMBERS:
        return f"values of dtype {tensor.dtype} are not numbers"
    return None


def on_host(tensor: Any) -> bool:
    """Whether the values lie in the memory of the host."""
    device = getattr(tensor, "device", None)
    if device is None:
        return bool(mindspore.get_context("device_target") == "CPU")
    return str(device).startswith("CPU")


def as_array(tensor: Any) -> np.ndarray[Any, Any]:
    """A numpy view of a tensor on the host. Waits until the operator that writes the tensor has run."""
    return tensor.asnumpy()  # type: ignore[no-any-return]
