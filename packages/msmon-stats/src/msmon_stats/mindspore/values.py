"""Where the values of a MindSpore tensor can be read."""

from __future__ import annotations

import math
from typing import Any

import mindspore
import numpy as np
from mindspore import ops

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
KERNEL_DTYPES: dict[Any, str] = {
    getattr(mindspore, name): name for name in _FLOATS + _INTEGERS if hasattr(mindspore, name)
} | {mindspore.bool_: "uint8"}
"""The dtypes that kernels read as they are stored, and the kernels' names for them."""

_CONVERTED = frozenset(
    getattr(mindspore, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
    if hasattr(mindspore, name)
)


def is_sparse(tensor: Any) -> bool:
    """Whether a value is a COOTensor, CSRTensor or RowTensor."""
    return not isinstance(tensor, mindspore.Tensor)


def unsupported_reason(tensor: Any) -> str | None:
    """See `msmon_stats.unsupported_reason`."""
    if is_sparse(tensor) and not isinstance(tensor, (mindspore.COOTensor, mindspore.CSRTensor)):
        return f"a {type(tensor).__name__} has no statistics"
    if tensor.dtype not in KERNEL_DTYPES and tensor.dtype not in _CONVERTED:
        return f"values of dtype {tensor.dtype} are not numbers"
    if getattr(tensor, "has_init", False):
        return "the tensor is not initialized yet (init_data() does that)"
    return None


def device_target() -> str:
    """The kind of device that MindSpore computes on: `CPU`, `Ascend`, `GPU`."""
    return str(mindspore.get_context("device_target"))


def on_host(tensor: Any) -> bool:
    """Whether the values lie in the memory of the host."""
    # A tensor that is asked itself waits until it is computed; where there is no other device none is asked.
    if device_target() == "CPU":
        return True
    if is_sparse(tensor):
        tensor = tensor.values
    return str(getattr(tensor, "device", "")).startswith("CPU")


def stored_on_device(tensor: Any) -> tuple[Any, int]:
    """The stored values of a tensor without their history, of one dimension, and the number of zeros beside them that
    are not stored."""
    values = tensor.values if is_sparse(tensor) else tensor
    if isinstance(tensor, mindspore.COOTensor):
        # Entries of one position may occur several times; their sum is the value.
        indices = tensor.indices.astype(mindspore.int64)
        values = mindspore.COOTensor(indices, values, tensor.shape).coalesce().values
    implicit = math.prod(tensor.shape) - values.size
    return ops.stop_gradient(values).reshape(-1), implicit


def stored(tensor: Any) -> tuple[np.ndarray[Any, Any], int]:
    """The stored values of a tensor on the host as a numpy array, a view where one is possible, and the number of
    zeros beside them that are not stored."""
    if not is_sparse(tensor):
        return tensor.asnumpy(), 0
    values = tensor.values.asnumpy()
    if isinstance(tensor, mindspore.COOTensor) and len(values):
        # Entries of one position may occur several times; their sum is the value.
        position = np.ravel_multi_index(tuple(tensor.indices.asnumpy().T), tensor.shape)
        distinct, inverse = np.unique(position, return_inverse=True)
        if len(distinct) < len(values):
            values = np.bincount(inverse, weights=values.astype(np.float64))
    return values, math.prod(tensor.shape) - len(values)
