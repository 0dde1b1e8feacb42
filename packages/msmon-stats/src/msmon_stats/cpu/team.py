"""Threads for long jobs: the team that torch keeps, or a small pool of our own.

On a machine where torch computes with OpenMP its idle threads spin for a while after each operator, so a second set of
threads would compete with them for the cores. The same team is used instead. It does not survive a fork; a forked
child, and a program without torch, has the pool, whose threads sleep while there is nothing to do.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

# A few threads read as fast as the memory of a socket delivers.
_MOST_POOL_THREADS = 8

_forked = False
_fork_address: int | None = None
_pool: _Pool | None = None
_lock = threading.Lock()


def _after_fork() -> None:
    global _forked, _pool, _lock
    _forked, _pool, _lock = True, None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def thread_count() -> int:
    """How many threads a job may use: as many as torch; else one for each core, up to a few."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    limit = os.environ.get("OMP_NUM_THREADS", "")
    threads = min(_MOST_POOL_THREADS, len(os.sched_getaffinity(0)))
    return min(threads, int(limit)) if limit.isdigit() and int(limit) > 0 else threads


def openmp_fork() -> int:
    """The address of GOMP_parallel in the OpenMP library that torch uses; 0 without one, or in a forked child."""
    global _fork_address
    if _forked:
        return 0
    if _fork_address is None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "get_num_threads"):
            return 0
        _fork_address = _find_openmp(torch)
    return _fork_address


def _find_openmp(torch: Any) -> int:
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        # The search for a symbol of a loaded library includes the libraries it was linked with.
        function = ctypes.CDLL(library, mode=ctypes.RTLD_LOCAL | os.RTLD_NOLOAD).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def run_in_pool(work: Callable[[], object], threads: int) -> None:
    """Call `work` on so many threads, the calling one included, and wait for all."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = _Pool()
    _pool.run(work, threads)


class _Pool:
    """Daemon threads that wait for work without using the processor."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], object], threading.Semaphore]] = queue.SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], object], threads: int) -> None:
        helpers = threads - 1
        with self._lock:
            while self._threads < helpers:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"msmon-stats-{self._threads}", daemon=True).start()
        done = threading.Semaphore(0)
        for _ in range(helpers):
            self._tasks.put((work, done))
        work()
        for _ in range(helpers):
            done.acquire()

    def _serve(self) -> None:
        while True:
            work, done = self._tasks.get()
            try:
                work()
            finally:
                done.release()
