"""Running the compiled kernels over runs of values in the memory of the host."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from struct import pack, unpack
from typing import Any

import numpy as np

from msmon_stats.cpu import team
from msmon_stats.cpu.compile import compiled, row_address
from msmon_stats.cpu.job import JOB_WORDS, PIECE, build_job
from msmon_stats.cpu.row import ELEMENTS
from msmon_stats.fields import LOW, WIDE, WIDTH
from msmon_stats.fingerprint import WORD, power, signed
from msmon_stats.rows import Matrix

# Below so many elements the calling thread alone is faster than a team that has to wake up. Such a call lasts some ten
# microseconds and keeps the interpreter lock: giving it up could cost a whole switch interval.
ALONE = 1 << 17

# Many short runs: a team would save a few hundred microseconds, and lose milliseconds where the cores are taken.
_ALONE_IN_SHORT_RUNS = 1 << 22

_ITEMSIZE = {name: element.itemsize for name, element in ELEMENTS.items()}
_ROW_ARGUMENTS = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p)
_short_rows: dict[tuple[str, int], Any] = {}
_jobs: dict[tuple[str, int], Any] = {}


def warm_up(dtypes: Sequence[str] = ("float32", "bfloat16", "float16")) -> None:
    """Compile the kernels for these dtypes now (some ten milliseconds each) instead of at their first use."""
    for dtype in dtypes:
        _short_row(dtype, WIDTH)
    _job_function("serial", WIDTH)


def run_one(dtype: str, data: int, size: int, eps: float, out: int, keep: object = None, *, width: int = WIDTH) -> None:
    """Write the partials of `size` values of a dtype at the address `data` to the row at `out`.

    `width`: numbers of a row; 10 with a fingerprint.
    """
    if size <= ALONE:
        (_short_rows.get((dtype, width)) or _short_row(dtype, width))(data, size, eps, out)
    else:
        run_many(dtype, (data,), (size,), eps, out, keep, width=width)


def run_many(
    dtype: str,
    data: Sequence[int],
    sizes: Sequence[int],
    eps: float,
    out: int,
    keep: object = None,
    *,
    width: int = WIDTH,
) -> None:
    """The same for many runs of values; row i of the rows at `out` is that of run i.

    Args:
        dtype: a key of `ELEMENTS`.
        data: addresses.
        sizes: numbers of values.
        eps: values with `abs(x) < eps` count as zeros.
        out: an address.
        keep: what owns the memory; it stays alive until every thread is done with it, even if the caller is
            interrupted meanwhile.
        width: as above.
    """
    total = sum(sizes)
    pointers, lengths = array("q", data), array("q", sizes)
    job = array(
        "q",
        (
            row_address(dtype, width == WIDE),
            pointers.buffer_info()[0],
            lengths.buffer_info()[0],
            len(pointers),
            _ITEMSIZE[dtype],
            *unpack("q", pack("d", eps)),
            out,
            *_NO_TEAM,
        ),
    )
    if total <= ALONE:
        _job_function("serial", width)(job.buffer_info()[0])
    elif total <= _ALONE_IN_SHORT_RUNS and max(sizes) <= PIECE:
        _job_function("serial_unlocked", width)(job.buffer_info()[0])
    else:
        _run_in_pieces(job, sizes, total, (pointers, lengths, keep), width)


def run_tables(
    tables: Mapping[str, Sequence[int]],
    tensors: Sequence[Any],
    address: Callable[[Any], int],
    size: Callable[[Any], int],
    eps: float,
    out: Matrix,
) -> None:
    """The same for tensors of several dtypes, each of which is one run of values.

    Args:
        tables: dtype to the positions of its tensors.
        tensors: all tensors.
        address, size: of a tensor's values.
        eps: as above.
        out: one row a tensor, float64 `[n, 8]` or, with fingerprints, `[n, 10]`, C-contiguous.
    """
    width = out.shape[1]
    for dtype, members in tables.items():
        group = [tensors[i] for i in members]
        data, sizes = [address(tensor) for tensor in group], [size(tensor) for tensor in group]
        if len(members) == len(tensors):
            run_many(dtype, data, sizes, eps, out.ctypes.data, (tensors, out), width=width)
        else:
            part = np.empty((len(members), width))
            run_many(dtype, data, sizes, eps, part.ctypes.data, (tensors, part), width=width)
            out[members] = part


# What only a team needs: the words of a job after `out`.
_NO_TEAM = (0,) * (len(JOB_WORDS) - 1 - JOB_WORDS.index("out"))


def _run_in_pieces(job: array[int], sizes: Sequence[int], total: int, keep: object, width: int) -> None:
    threads = min(team.thread_count(), -(-total // PIECE))
    pieces = sum([max(1, -(-size // PIECE)) for size in sizes])
    scratch = array("d", bytes(8 * width * pieces))
    fork = team.openmp_fork()
    # Many short runs are taken several at a time, but not so many that the threads end at different times.
    grain = max(1, min(16, pieces * PIECE // (4 * total), pieces // (4 * threads)))
    for word, value in (
        ("scratch", scratch.buffer_info()[0]),
        ("pieces", pieces),
        ("grain", grain),
        ("piece_power", signed(power(PIECE * job[JOB_WORDS.index("itemsize")] // WORD))),
        ("fork", fork),
        ("threads", threads),
    ):
        job[JOB_WORDS.index(word)] = value
    address = job.buffer_info()[0]
    if fork and threads > 1:
        _job_function("team", width)(address)
        return
    body = _job_function("body", width)

    def work(_keep: object = (job, scratch, keep)) -> None:
        body(address)

    # One thread alone reads the same pieces: the numbers do not depend on how many there are.
    if threads > 1:
        team.run_in_pool(work, threads)
    else:
        work()
    _job_function("finish", width)(address)


def _short_row(dtype: str, width: int) -> Any:
    prototype = ctypes.PYFUNCTYPE(None, *_ROW_ARGUMENTS)
    function = _short_rows[dtype, width] = prototype(row_address(dtype, width == WIDE))
    return function


def _job_function(name: str, width: int) -> Any:
    function = _jobs.get((name, width))
    if function is None:
        address = compiled(build_job(width))
        for known in ("serial", "body", "finish", "team"):
            _jobs[known, width] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address(known))
        _jobs["serial_unlocked", width] = _jobs["serial", width]
        _jobs["serial", width] = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address("serial"))
        function = _jobs[name, width]
    return function


def sum_of_words(data: int, size: int, keep: object = None) -> int:
    """Over the words of `size` bytes at the address `data`; see `msmon_stats.fingerprint`."""
    row = np.empty(WIDE)
    # Faster than bytes, where there are none but whole words.
    dtype, size = ("float32", size // WORD) if size % WORD == 0 else ("uint8", size)
    run_one(dtype, data, size, 0.0, row.ctypes.data, (row, keep), width=WIDE)
    low, high = row[LOW:].astype(np.uint64).tolist()
    return int(low) + (int(high) << 32)
