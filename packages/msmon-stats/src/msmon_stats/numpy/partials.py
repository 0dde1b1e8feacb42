"""Partials of numpy arrays: checks, choice of kernel, output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msmon_stats.choice import choose, has_cpu_kernel
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.fields import DEFAULT_EPS, MAX, MIN, WIDE, WIDTH
from msmon_stats.fingerprint import WORD, power, sum_of_words, to_fields
from msmon_stats.numpy.reference import accumulate
from msmon_stats.numpy.values import Array, in_order, kernel_dtype, read, unsupported_reason
from msmon_stats.rows import Matrix, add, clear, repeat


def usable_kernels() -> tuple[str, ...]:
    """The kernels that can read arrays here, the fastest first."""
    return ("cpu", "operators") if has_cpu_kernel() else ("operators",)


def partial(
    array: Any,
    eps: float = DEFAULT_EPS,
    *,
    out: Matrix | None = None,
    kernel: str | None = None,
    fingerprint: bool = False,
) -> Matrix:
    """See `msmon_stats.partial`."""
    rows = partial_many([array], eps, out=None if out is None else out[None], kernel=kernel, fingerprint=fingerprint)
    return rows[0] if out is None else out


def partial_many(
    arrays: Sequence[Any],
    eps: float = DEFAULT_EPS,
    *,
    out: Matrix | None = None,
    kernel: str | None = None,
    fingerprint: bool = False,
) -> Matrix:
    """See `msmon_stats.partial_many`."""
    width = WIDE if fingerprint else WIDTH
    chosen = choose(kernel, usable_kernels())
    arrays = [np.asarray(array) for array in arrays]
    for array in arrays:
        reason = unsupported_reason(array)
        if reason is not None:
            raise UnsupportedTensorError(reason)
    if out is None:
        out = np.empty((len(arrays), width))
    elif out.shape != (len(arrays), width) or out.dtype != np.float64 or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be a contiguous float64 [{len(arrays)}, {width}], not {out.dtype} {list(out.shape)}"
        )
    if chosen == "cpu":
        _compiled_rows(arrays, float(eps), out)
    else:
        for array, row in zip(arrays, out, strict=True):
            _piecewise(array, float(eps), row[:WIDTH], accumulate)
            if fingerprint:
                row[WIDTH:] = _words(array, lambda piece: sum_of_words(piece.view(np.uint8)))
    return out


def _words(array: Array, read_run: Callable[[Array], int]) -> tuple[float, float]:
    """The columns of a fingerprint, read in the order of the content, whatever that is in memory."""
    if array.dtype.kind in "fc" and array.real.dtype.itemsize > 8:
        # Numbers of extended precision have bytes between them that mean nothing.
        return to_fields(None)
    total = words = 0
    for piece in in_order(array):
        total += power(words) * read_run(piece)
        words += piece.nbytes // WORD
    return to_fields(total)


def _compiled_rows(arrays: Sequence[Array], eps: float, out: Matrix) -> None:
    """Contiguous arrays of one dtype in one call, the others one by one."""
    from msmon_stats import cpu

    width = out.shape[1]
    tables: dict[str, list[int]] = {}
    for i, array in enumerate(arrays):
        dtype = kernel_dtype(array.dtype)
        # What has a fingerprint is read in its own order.
        whole = array.flags.c_contiguous or (array.flags.f_contiguous and width == WIDTH)
        if dtype is not None and whole and array.flags.aligned:
            tables.setdefault(dtype, []).append(i)
        else:
            _piecewise(array, eps, out[i, :WIDTH], _compiled)
            if width == WIDE:
                out[i, WIDTH:] = _words(array, _compiled_words)
    for dtype, members in tables.items():
        group = [arrays[i] for i in members]
        # Consecutive rows are written in place.
        rows = out if len(members) == len(arrays) else np.empty((len(members), width))
        data, sizes = [array.ctypes.data for array in group], [array.size for array in group]
        cpu.run_many(dtype, data, sizes, eps, rows.ctypes.data, keep=(group, rows), width=width)
        if rows is not out:
            out[members] = rows


def _compiled(values: Array, eps: float, row: Matrix) -> None:
    from msmon_stats import cpu

    dtype = kernel_dtype(values.dtype)
    assert dtype is not None
    cpu.run_many(dtype, (values.ctypes.data,), (values.size,), eps, row.ctypes.data, keep=(values, row))


def _compiled_words(piece: Array) -> int:
    from msmon_stats import cpu

    return cpu.sum_of_words(piece.ctypes.data, piece.nbytes, piece)


def _piecewise(array: Array, eps: float, row: Matrix, accumulate_run: Any) -> None:
    """One array of any layout and dtype into its row."""
    clear(row)
    if array.size == 0:
        return
    reading = read(array)
    part = np.empty(WIDTH)
    for piece in reading.pieces:
        accumulate_run(piece, eps, part)
        add(row, part)
    repeat(row, reading.times)


def merge(a: Matrix, b: Matrix) -> Matrix:
    """See `msmon_stats.merge`."""
    with np.errstate(all="ignore"):
        result = np.add(a, b)
    np.minimum(a[..., MIN], b[..., MIN], out=result[..., MIN])
    np.maximum(a[..., MAX], b[..., MAX], out=result[..., MAX])
    # Nobody knows where in the whole the parts begin.
    result[..., WIDTH:] = np.nan
    return result


def to_host(matrix: Matrix) -> Matrix:
    """The matrix itself: arrays lie on the host."""
    return matrix
