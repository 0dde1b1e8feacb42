"""Partials of MindSpore tensors in the memory of the host, by the kernels for arrays.

A tensor's address is asked for, which waits until the operators that write it have run; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from msmon_stats import numpy as host
from msmon_stats.choice import choose
from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.mindspore.values import KERNEL_DTYPES, is_sparse, stored
from msmon_stats.rows import Matrix, add_zeros

# Without a method that gives the address (MindSpore before 2.5) a view as an array does the same, more slowly.
_HAS_ADDRESS = hasattr(Tensor, "data_ptr") and hasattr(Tensor, "is_contiguous")


def rows(tensors: Sequence[Any], eps: float, out: Matrix, kernel: str | None = None) -> None:
    """Write the partials of supported tensors into `out`, float64 `[n, 8]` or `[n, 10]`, C-contiguous."""
    if choose(kernel, host.usable_kernels()) != "cpu" or not _HAS_ADDRESS:
        _as_arrays(tensors, range(len(tensors)), eps, out, kernel)
        return
    from msmon_stats import cpu

    tables: dict[str, list[int]] = {}
    others = []
    for i, tensor in enumerate(tensors):
        dtype = None if is_sparse(tensor) or not tensor.is_contiguous() else KERNEL_DTYPES.get(tensor.dtype)
        if dtype is None:
            others.append(i)
        else:
            tables.setdefault(dtype, []).append(i)
    cpu.run_tables(tables, tensors, Tensor.data_ptr, lambda tensor: tensor.size, eps, out)
    _as_arrays(tensors, others, eps, out, kernel)


def _as_arrays(tensors: Sequence[Any], members: Sequence[int], eps: float, out: Matrix, kernel: str | None) -> None:
    for i in members:
        array, implicit = stored(tensors[i])
        host.partial(array, eps, out=out[i], kernel=kernel, fingerprint=out.shape[1] == WIDE)
        if is_sparse(tensors[i]):
            out[i, WIDTH:] = np.nan
        add_zeros(out[i], implicit, eps)


def number(value: Any) -> float:
    """A number, or a 0-d tensor, as a float."""
    if isinstance(value, Tensor):
        return float(value.astype(mindspore.float64).asnumpy())
    return float(value)
