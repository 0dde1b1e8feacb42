"""Partials on a GPU: each piece of a tensor is read once by one program, the rows of the pieces are merged in order.

One tensor is given by its pointer, many by a table of addresses, so thousands of parameters cost three launches. The
sums are float64; values are compared in their own precision. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from msmon_stats.fields import WIDE, WIDTH
from msmon_stats.fingerprint import WORD, power, powers, signed
from msmon_stats.torch.devices import entered
from msmon_stats.torch.operators import correct, merged
from msmon_stats.torch.values import KERNEL_DTYPES, plain, read
from msmon_stats.torch.words import element_powers_on, powers_on, write_fields

_BLOCK = 2048
_PIECE = 8 * _BLOCK
# The rows of so many pieces are merged by one program in less time than it takes to read the pieces.
_MOST_PIECES = 8192

_NARROW = ("float32", "float16", "bfloat16", "int8", "int16", "uint8", "uint16")
TYPES = {
    "float64": tl.float64,
    "float32": tl.float32,
    "float16": tl.float16,
    "bfloat16": tl.bfloat16,
    **{f"{sign}int{bits}": getattr(tl, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@triton.jit
def words_of(value, ITEMSIZE: tl.constexpr):
    """The bits of values, as the sum of their words: of two, the second counts `BASE` times."""
    # One way out: a second return is compiled, too.
    if ITEMSIZE == 1:
        words = value.to(tl.uint8, bitcast=True).to(tl.int64)
    elif ITEMSIZE == 2:
        words = value.to(tl.uint16, bitcast=True).to(tl.int64)
    elif ITEMSIZE == 4:
        words = value.to(tl.uint32, bitcast=True).to(tl.int64)
    else:
        bits = value.to(tl.int64, bitcast=True)
        words = (bits & 0xFFFFFFFF) + ((bits >> 32) & 0xFFFFFFFF) * 6364136223846793005
    return words


@triton.jit
def _read_piece(
    pointer,
    size,
    eps_pointer,
    row,
    places,
    power,
    BLOCK: tl.constexpr,
    NARROW: tl.constexpr,
    ITEMSIZE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Write the partials of `size` values to the eight numbers at `row`.

    With fingerprints `ITEMSIZE` is that of the values, else 0; two more numbers are written. `places` is by what the
    elements of a block are multiplied, `power` that of the first word, `STEP` that of a block.
    """
    eps = tl.load(eps_pointer)
    if NARROW:
        compare = tl.float32
        # The smallest float32 that is not below eps: x < eps then means the same.
        narrow = eps.to(tl.float32)
        above = (narrow.to(tl.int32, bitcast=True) + 1).to(tl.float32, bitcast=True)
        limit = tl.where(narrow.to(tl.float64) < eps, above, narrow)
    else:
        compare = tl.float64
        limit = eps
    infinity = float("inf")
    low = tl.full((BLOCK,), infinity, compare)
    high = tl.full((BLOCK,), -infinity, compare)
    nans = tl.zeros((BLOCK,), tl.int32)
    infs = tl.zeros((BLOCK,), tl.int32)
    zeros = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    lane = tl.arange(0, BLOCK)
    words = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, size, BLOCK):
        inside = start + lane < size
        stored = tl.load(pointer + start + lane, mask=inside, other=0)
        if ITEMSIZE:
            words += words_of(stored, ITEMSIZE) * power
            power *= STEP
        value = stored.to(compare)
        nan = value != value
        known = inside & (value == value)
        magnitude = tl.abs(value)
        nans += (inside & nan).to(tl.int32)
        infs += (inside & (magnitude == infinity)).to(tl.int32)
        zeros += (inside & (magnitude < limit)).to(tl.int32)
        low = tl.minimum(low, tl.where(known, value, infinity))
        high = tl.maximum(high, tl.where(known, value, -infinity))
        wide = tl.where(known, value, 0.0).to(tl.float64)
        total += wide
        squares += wide * wide
    tl.store(row + 0, size.to(tl.float64))
    tl.store(row + 1, tl.sum(nans, 0).to(tl.float64))
    tl.store(row + 2, tl.sum(infs, 0).to(tl.float64))
    tl.store(row + 3, tl.sum(zeros, 0).to(tl.float64))
    tl.store(row + 4, tl.min(low, 0).to(tl.float64))
    tl.store(row + 5, tl.max(high, 0).to(tl.float64))
    tl.store(row + 6, tl.sum(total, 0))
    tl.store(row + 7, tl.sum(squares, 0))
    if ITEMSIZE:
        content = tl.sum(words * tl.load(places + lane), 0)
        tl.store(row + 8, (content & 0xFFFFFFFF).to(tl.float64))
        tl.store(row + 9, ((content >> 32) & 0xFFFFFFFF).to(tl.float64))


@triton.jit(do_not_specialize=["size", "piece"])
def _one_tensor(
    pointer,
    size,
    piece,
    eps,
    rows,
    places,
    powers,
    BLOCK: tl.constexpr,
    NARROW: tl.constexpr,
    WIDTH: tl.constexpr,
    ITEMSIZE: tl.constexpr,
    STEP: tl.constexpr,
):
    """`powers`: of the first word of each piece."""
    number = tl.program_id(0)
    start = number.to(tl.int64) * piece
    length = tl.minimum(size - start, piece)
    power = tl.load(powers + number) if ITEMSIZE else 0
    _read_piece(pointer + start, length, eps, rows + number * WIDTH, places, power, BLOCK, NARROW, ITEMSIZE, STEP)


@triton.jit
def _many_tensors(
    table,
    eps,
    rows,
    places,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    NARROW: tl.constexpr,
    WIDTH: tl.constexpr,
    ITEMSIZE: tl.constexpr,
    STEP: tl.constexpr,
):
    """`table`: address and size of each piece, and with fingerprints the power of its first word."""
    number = tl.program_id(0)
    entry = table + number * (3 if ITEMSIZE else 2)
    pointer = tl.load(entry).to(tl.pointer_type(DTYPE))
    length = tl.load(entry + 1)
    power = tl.load(entry + 2) if ITEMSIZE else 0
    _read_piece(pointer, length, eps, rows + number * WIDTH, places, power, BLOCK, NARROW, ITEMSIZE, STEP)


@triton.jit
def _merge(rows, bounds, out, BLOCK: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Merge the rows `bounds[i, 0]` to `bounds[i, 1]` into row `bounds[i, 2]` of `out`."""
    number = tl.program_id(0)
    first = tl.load(bounds + number * 3)
    last = tl.load(bounds + number * 3 + 1)
    target = out + tl.load(bounds + number * 3 + 2) * WIDTH
    infinity = float("inf")
    column = tl.arange(0, COLUMNS)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, COLUMNS), tl.float64)
    low = tl.full((BLOCK, COLUMNS), infinity, tl.float64)
    high = tl.full((BLOCK, COLUMNS), -infinity, tl.float64)
    for start in range(first, last, BLOCK):
        row = start + lane
        inside = (row < last)[:, None] & (column < WIDTH)[None, :]
        part = tl.load(rows + row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
        total += part
        low = tl.minimum(low, tl.where(inside, part, infinity))
        high = tl.maximum(high, tl.where(inside, part, -infinity))
    merged = tl.where(column == 4, tl.min(low, 0), tl.sum(total, 0))
    merged = tl.where(column == 5, tl.max(high, 0), merged)
    tl.store(target + column, merged, mask=column < WIDTH)


def write_rows(tensors: Sequence[torch.Tensor], eps: torch.Tensor, out: torch.Tensor) -> None:
    """Write the partials of supported local tensors on one device into `out`, contiguous float64 `[n, 8]`, or `[n, 10]`
    with fingerprints.

    `eps` is a 0-d float64 tensor on that device.
    """
    tables: dict[torch.dtype, tuple[list[torch.Tensor], list[int]]] = {}
    for i, tensor in enumerate(tensors):
        if plain(tensor) is None:
            reading = read(tensor)
            pieces = list(reading.pieces)
            wide = out.shape[1] == WIDE
            # What has a fingerprint is read in its own order.
            if len(pieces) != 1 or reading.times != 1 or reading.implicit or wide:
                _write_piecewise(pieces, eps, out[i, :WIDTH])
                correct(out[i], reading, eps)
                if wide:
                    write_fields(tensor, out[i, WIDTH:])
                continue
            tensor = pieces[0]
        runs, rows = tables.setdefault(tensor.dtype, ([], []))
        runs.append(tensor)
        rows.append(i)
    for runs, rows in tables.values():
        _write_runs(runs, rows, eps, out)


def _write_piecewise(pieces: list[torch.Tensor], eps: torch.Tensor, row: torch.Tensor) -> None:
    """One tensor that had to be copied or converted."""
    if not pieces:
        pieces = [row.new_empty(0)]
    parts = row.new_empty((len(pieces), WIDTH))
    _write_runs(pieces, list(range(len(pieces))), eps, parts)
    row.copy_(parts[0] if len(parts) == 1 else merged(parts))


def _write_runs(runs: list[torch.Tensor], rows: list[int], eps: torch.Tensor, out: torch.Tensor) -> None:
    """Contiguous tensors of one dtype into the named rows of `out`."""
    dtype, width = KERNEL_DTYPES[runs[0].dtype], out.shape[1]
    itemsize = runs[0].element_size() if width == WIDE else 0
    options = {
        "BLOCK": _BLOCK,
        "NARROW": dtype in _NARROW,
        "WIDTH": width,
        "ITEMSIZE": itemsize,
        "STEP": signed(power(_BLOCK * itemsize // WORD)),
    }
    sizes = [run.numel() for run in runs]
    piece = _piece_size(max(sizes))
    counts = [max(1, -(-size // piece)) for size in sizes]
    places = element_powers_on(out.device, _BLOCK, itemsize) if itemsize else eps
    with entered(out.device):
        if len(runs) == 1:
            # uint8 carries bool, whose pointer Triton would read as one bit.
            run = runs[0].view(torch.uint8) if runs[0].dtype is torch.bool else runs[0]
            scratch = out[rows[0] : rows[0] + 1] if counts[0] == 1 else out.new_empty((counts[0], width))
            starts = powers_on(out.device, counts[0], piece * itemsize // WORD) if itemsize else eps
            _one_tensor[(counts[0],)](run, sizes[0], piece, eps, scratch, places, starts, **options)
        else:
            scratch = out.new_empty((sum(counts), width))
            table = table_of([run.data_ptr() for run in runs], sizes, counts, piece, runs[0].element_size())
            if itemsize:
                of_piece = powers(max(counts), piece * itemsize // WORD).view(np.int64)
                table = np.column_stack((table, np.concatenate([of_piece[:count] for count in counts])))
            _many_tensors[(len(scratch),)](send(table, out.device), eps, scratch, places, DTYPE=TYPES[dtype], **options)
        if len(runs) > 1 or counts[0] > 1:
            last = np.cumsum(counts)
            bounds = np.stack((last - counts, last, rows), axis=1)
            shape = {"BLOCK": 16 if max(counts) <= 16 else 128, "WIDTH": width, "COLUMNS": 8 if width == 8 else 16}
            _merge[(len(runs),)](scratch, send(bounds, out.device), out, **shape)


def _piece_size(largest: int) -> int:
    blocks = -(-largest // (_MOST_PIECES * _BLOCK))
    return max(_PIECE, blocks * _BLOCK)


def table_of(addresses: list[int], sizes: list[int], counts: list[int], piece: int, itemsize: int) -> Any:
    """Address and size of every piece."""
    run = np.repeat(np.arange(len(sizes)), counts)
    first = np.cumsum(counts) - counts
    start = (np.arange(len(run)) - first[run]) * piece
    return np.stack(
        (np.array(addresses)[run] + start * itemsize, np.minimum(np.array(sizes)[run] - start, piece)), axis=1
    )


def send(table: Any, device: torch.device) -> torch.Tensor:
    """A small table to the device, without waiting for it."""
    host = torch.from_numpy(np.ascontiguousarray(table, dtype=np.int64))
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)
