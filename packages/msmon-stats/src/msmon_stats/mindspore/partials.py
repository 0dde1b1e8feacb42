"""Partials of MindSpore tensors: checks, choice of kernel, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from msmon_stats import numpy as host_arrays
from msmon_stats.choice import choose, wish
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.fields import DEFAULT_EPS, WIDE, WIDTH
from msmon_stats.mindspore import float32_rows, host
from msmon_stats.mindspore.values import device_target, on_host, unsupported_reason
from msmon_stats.rows import Matrix


def usable_kernels(is_host: bool) -> tuple[str, ...]:
    """The kernels that can read tensors in the memory of the host, or of an accelerator; the first one is the automatic
    choice. Accelerators are asked for nothing: what reads tensors there makes do with float32."""
    return (*host_arrays.usable_kernels(), "float32") if is_host else ("float32",)


def chosen_kernel(kernel: str | None, is_host: bool) -> str:
    """The kernel for tensors of a place. One that is forced, by the argument or by `$MSMON_KERNEL`, leaves places that
    do not have it with their own choice."""
    usable = usable_kernels(is_host)
    wanted = wish(kernel)
    return wanted if wanted in usable else usable[0]


def chosen_kernels() -> dict[str, str]:
    """Kind of device to the kernel that a training's tensors there are read with."""
    kinds = dict.fromkeys(("cpu", device_target().lower()))
    return {kind: chosen_kernel(None, kind == "cpu") for kind in kinds}


def partial(
    tensor: Any, eps: Any = DEFAULT_EPS, *, out: Any = None, kernel: str | None = None, fingerprint: bool = False
) -> Any:
    """See `msmon_stats.partial`."""
    row = partial_many([tensor], eps, kernel=kernel, fingerprint=fingerprint)[0]
    return row if out is None else _into(out, row)


def partial_many(
    tensors: Sequence[Any],
    eps: Any = DEFAULT_EPS,
    *,
    out: Any = None,
    kernel: str | None = None,
    fingerprint: bool = False,
) -> Any:
    """See `msmon_stats.partial_many`."""
    width = WIDE if fingerprint else WIDTH
    for tensor in tensors:
        reason = unsupported_reason(tensor)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    places = {on_host(tensor) for tensor in tensors}
    if len(places) > 1:
        raise ValueError("tensors on several devices: some on the host, some not")
    chosen = choose(kernel, usable_kernels(places == {True}))
    if chosen == "float32":
        matrix = float32_rows.partials(tensors, host.number(eps), width)
    else:
        matrix = np.empty((len(tensors), width))
        host.rows(tensors, host.number(eps), matrix, chosen)
    # On the host, wherever the tensors are: of float64 an accelerator may have none.
    rows = Tensor.from_numpy(matrix)
    return rows if out is None else _into(out, rows)


def _into(out: Any, values: Any) -> Any:
    if tuple(out.shape) != tuple(values.shape) or out.dtype != values.dtype:
        raise ValueError(f"out must be a {values.dtype} {list(values.shape)}, not {out.dtype} {list(out.shape)}")
    out.copy_(values)
    return out


def merge(a: Any, b: Any) -> Any:
    """See `msmon_stats.merge`. On the host, where the rows are."""
    return Tensor.from_numpy(host_arrays.merge(to_host(a), to_host(b)))


def to_host(matrix: Any) -> Matrix:
    """Wait for the device and copy the partials to the host."""
    array: Matrix = matrix.asnumpy()
    return array
