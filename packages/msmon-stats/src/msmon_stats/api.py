"""The functions that work on values of every framework; each hands over to the back end of its argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msmon_stats.backend import backend_of
from msmon_stats.fields import DEFAULT_EPS, OPS
from msmon_stats.finalizing import finalize


def unsupported_reason(tensor: Any) -> str | None:
    """Why a value has no statistics, or None where it has.

    Meta, quantized and nested tensors, strings and objects have none.

    >>> import numpy as np
    >>> unsupported_reason(np.zeros(3)) is None
    True
    >>> unsupported_reason(np.array(["a"]))
    'values of dtype str32 are not numbers'
    """
    return backend_of(tensor).unsupported_reason(tensor)  # type: ignore[no-any-return]


def partial(
    tensor: Any, eps: Any = DEFAULT_EPS, *, out: Any = None, kernel: str | None = None, fingerprint: bool = False
) -> Any:
    """The sufficient statistics of one tensor, on its own device, without waiting for the device.

    Args:
        tensor: numpy array, torch tensor or MindSpore tensor of any shape and dtype. Of a DTensor the local part, of a
            sparse tensor all elements, the implicit zeros too, of complex numbers the absolute value.
        eps: elements with `abs(x) < eps` count as zeros; a number, or a 0-d tensor on the same device.
        out: float64 `[8]` on the same device to write into.
        kernel: force an implementation; one of `msmon_stats.KERNELS`; None picks the fastest.
        fingerprint: two more columns, from which `msmon_stats.fingerprints` makes the fingerprint.

    Returns:
        float64 `[8]` on the tensor's device, in the order of `msmon_stats.FIELDS`; on the host, and waited for, where
        the device has no float64. Sums are accumulated in float64 whatever the dtype, so low precision costs no
        accuracy (the kernel `float32` is right to 1e-6). NaNs are counted and left out of min, max, sum
        and sum of squares. An empty tensor gives zeros, min +inf and max -inf.

    Raises:
        UnsupportedTensorError: the value has no statistics; nothing was written.

    >>> import numpy as np
    >>> partial(np.array([1.0, -2.0, np.nan, 0.0])).tolist()
    [4.0, 1.0, 0.0, 1.0, -2.0, 1.0, -1.0, 5.0]
    """
    return backend_of(tensor).partial(tensor, eps, out=out, kernel=kernel, fingerprint=fingerprint)


def partial_many(
    tensors: Sequence[Any],
    eps: Any = DEFAULT_EPS,
    *,
    out: Any = None,
    kernel: str | None = None,
    fingerprint: bool = False,
) -> Any:
    """The sufficient statistics of many tensors of one framework and device: float64 `[n, 8]`, with fingerprints
    `[n, 10]`.

    As `partial`, with a cost per tensor that is far below that of a call.

    Raises:
        UnsupportedTensorError: one of the values has no statistics; nothing was written.
        ValueError: no tensors, tensors on several devices, or an `out` of another shape or dtype.

    >>> import numpy as np
    >>> partial_many([np.ones(3), np.zeros(2)])[:, 0].tolist()
    [3.0, 2.0]
    """
    if len(tensors) == 0:
        raise ValueError("partial_many needs at least one tensor: the framework and the device are taken from it")
    return backend_of(tensors[0]).partial_many(tensors, eps, out=out, kernel=kernel, fingerprint=fingerprint)


def merge(a: Any, b: Any) -> Any:
    """The partials of two parts together: counts and sums are added, min and max compared.

    Takes and gives float64 `[8]` or `[n, 8]` of one framework, on their device. Columns of fingerprints become nan:
    they do not say where in the whole a part begins.

    >>> import numpy as np
    >>> x = np.array([3.0, 1.0, 2.0])
    >>> merge(partial(x[:1]), partial(x[1:])).tolist() == partial(x).tolist()
    True
    """
    return backend_of(a).merge(a, b)


def summarize(
    tensor: Any, ops: Sequence[str] = OPS, eps: float = DEFAULT_EPS, *, kernel: str | None = None
) -> dict[str, float]:
    """Statistics of one tensor as Python floats. Waits for the device.

    >>> import numpy as np
    >>> summarize(np.array([3.0, -4.0]), ["norm", "max"])
    {'norm': 5.0, 'max': 3.0}
    """
    return summarize_many([tensor], ops, eps, kernel=kernel)[0]


def summarize_many(
    tensors: Sequence[Any], ops: Sequence[str] = OPS, eps: float = DEFAULT_EPS, *, kernel: str | None = None
) -> list[dict[str, float]]:
    """Statistics of many tensors of one framework and device as Python floats, with one transfer to the host.

    >>> import numpy as np
    >>> summarize_many([np.ones(4), np.zeros(2)], ["mean", "zeros"])
    [{'mean': 1.0, 'zeros': 0.0}, {'mean': 0.0, 'zeros': 1.0}]
    """
    if len(tensors) == 0:
        return []
    matrix = backend_of(tensors[0]).to_host(partial_many(tensors, eps, kernel=kernel))
    return [dict(zip(ops, row, strict=True)) for row in finalize(matrix, ops).tolist()]
