"""Partials of tensors in the memory of the host, by the compiled kernels, without calling any operator of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from msmon_stats import cpu
from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.fingerprint import WORD, power, to_fields
from msmon_stats.layout import layout_of
from msmon_stats.rows import Matrix, add, add_zeros, clear, repeat
from msmon_stats.torch.values import KERNEL_DTYPES, address_of, plain, read
from msmon_stats.torch.words import in_order


def plain_on_host(tensor: Any) -> str | None:
    """As `plain`, and None for a tensor on another device."""
    return plain(tensor) if tensor.is_cpu else None


def same_dtype(tensors: Sequence[Any]) -> tuple[str, list[int], list[int]] | None:
    """The dtype, addresses and sizes of tensors that are all contiguous, on the host and of one dtype; else None."""
    dtype = plain_on_host(tensors[0])
    if dtype is None:
        return None
    for tensor in tensors:
        if not tensor.is_cpu or plain(tensor) is not dtype:
            return None
    data = []
    for tensor in tensors:
        address = address_of(tensor)
        if address is None:
            return None
        data.append(address)
    return dtype, data, [tensor.numel() for tensor in tensors]


def rows(tensors: Sequence[torch.Tensor], eps: float, out: Matrix) -> None:
    """Write the partials of supported local tensors into `out`, float64 `[n, 8]` or `[n, 10]`, C-contiguous."""
    wide = out.shape[1] == WIDE
    tables: dict[str, list[int]] = {}
    for i, tensor in enumerate(tensors):
        dtype = plain(tensor)
        if dtype is not None:
            tables.setdefault(dtype, []).append(i)
            continue
        dtype = _dense(tensor)
        # What has a fingerprint is read in its own order.
        if dtype is not None and not (wide and not tensor.is_contiguous()):
            tables.setdefault(dtype, []).append(i)
            continue
        _piecewise(tensor, eps, out[i])
        if wide:
            out[i, WIDTH:] = _words(tensor)
    cpu.run_tables(tables, tensors, torch.Tensor.data_ptr, torch.Tensor.numel, eps, out)


def _dense(tensor: torch.Tensor) -> str | None:
    """As `plain`, for tensors that fill one run of memory in another order of axes."""
    if tensor.layout is not torch.strided or tensor.is_neg() or tensor.numel() == 0:
        return None
    layout = layout_of(tensor.shape, tensor.stride())
    return KERNEL_DTYPES.get(tensor.dtype) if layout.dense and layout.times == 1 else None


def _words(tensor: torch.Tensor) -> tuple[float, float]:
    """The columns of a fingerprint."""
    runs = in_order(tensor)
    if runs is None:
        return to_fields(None)
    total = before = 0
    for run in runs:
        total += power(before) * cpu.sum_of_words(run.data_ptr(), run.numel(), run)
        before += run.numel() // WORD
    return to_fields(total)


def _piecewise(tensor: torch.Tensor, eps: float, row: Matrix) -> None:
    """One tensor of any layout and dtype into its row."""
    clear(row)
    reading = read(tensor)
    part = np.empty(WIDTH)
    for piece in reading.pieces:
        cpu.run_many(
            KERNEL_DTYPES[piece.dtype], (piece.data_ptr(),), (piece.numel(),), eps, part.ctypes.data, keep=(piece, part)
        )
        add(row, part)
    repeat(row, reading.times)
    add_zeros(row, reading.implicit, eps)
