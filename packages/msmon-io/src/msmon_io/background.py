"""One thread that does the slow work (formatting, files) beside the training."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from msmon_io.losses import Losses

logger = logging.getLogger("msmon_io")

Job = tuple[Callable[..., object], tuple[Any, ...]]

# Waiting is worth a warning if within a minute it is more than a second and more than this share of the time. Where
# steps take milliseconds, each may well wait a little; and the first seconds, in which writers import what they need,
# say nothing about the rest.
_WINDOW_S = 60.0
_FIRST_S = 10.0
_MATERIAL_S = 1.0
_MATERIAL_SHARE = 0.05


class Background:
    """Runs jobs in order on one daemon thread.

    A job must be finished before the next is taken, so a killed process loses at most the job being done and what the
    training has not handed over yet. `submit` waits for it; where that takes a noticeable share of the time, it is said
    once. If the job being done has not ended after `patience` seconds (a hung network disk), further jobs are dropped,
    counted and reported rather than stopping the training for ever.

    A job that raises is logged once and counted in `losses`. In a forked child every method returns at once.

    >>> with Background() as background:
    ...     taken = background.submit(print, "written beside the training")
    written beside the training
    """

    def __init__(self, *, patience: float = 60.0, name: str = "msmon-writer") -> None:
        self.patience = patience
        self.losses = Losses(part="background", unit="jobs")
        self.waits = 0
        """How often `submit` had to wait."""
        self.waited_s = 0.0
        """How long it waited, in seconds, all in all."""
        self._window_begin: float | None = None
        self._window_waited_s = 0.0
        self._said = False
        self._name = name
        self._pid = os.getpid()
        self._job: Job | None = None
        """The one that is not finished."""
        self._closed = False
        self._hung = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[..., object], *args: Any) -> bool:
        """Run `job(*args)` after the jobs before it. False if it was dropped.

        After `close`, and where no thread can be started, it runs at once.
        """
        if os.getpid() != self._pid:
            return False
        with self._changed:
            if not self._closed:
                if not self._wait_for_room():
                    error = TimeoutError(f"the job before it is not done after {self.patience:g} s")
                    self.losses.add(1, error, _name_of(job))
                    return False
                if self._start():
                    self._job = job, args
                    self._changed.notify_all()
                    return True
        self._run((job, args))
        return True

    def _start(self) -> bool:
        """Whether there is a thread. The interpreter gives none when it is shutting down, nor does a full machine."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _wait_for_room(self) -> bool:
        if self._window_begin is None:
            self._window_begin = time.monotonic()
        if self._job is None:
            return True
        if self._hung or threading.current_thread() is self._thread:
            return False
        self.waits += 1
        begin = time.monotonic()
        has_room = self._changed.wait_for(lambda: self._job is None, self.patience)
        self._count_wait(begin, time.monotonic())
        self._hung = not has_room
        return has_room

    def _count_wait(self, begin: float, end: float) -> None:
        self.waited_s += end - begin
        self._window_waited_s += end - begin
        elapsed = end - (begin if self._window_begin is None else self._window_begin)
        material = self._window_waited_s > max(_MATERIAL_S, _MATERIAL_SHARE * elapsed)
        if material and elapsed > _FIRST_S and not self._said:
            self._said = True
            logger.warning(
                "writing is slower than the training, which has waited for it %.1f of the last %.1f s (said once); "
                "record fewer tensors or fewer steps",
                self._window_waited_s,
                elapsed,
            )
        if elapsed > _WINDOW_S:
            self._window_begin, self._window_waited_s = end, 0.0

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closed)
                if self._job is None:
                    return
            self._run(self._job)
            with self._changed:
                self._job = None
                self._hung = False
                self._changed.notify_all()

    def _run(self, job: Job) -> None:
        function, args = job
        try:
            function(*args)
        except BaseException as error:
            self.losses.add(1, error, _name_of(function))
            logger.debug("the job that failed", exc_info=True)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every job is done; False if that took longer than `timeout` seconds (default: `patience`)."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._job is None, self.patience if timeout is None else timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Finish the jobs, end the thread, report what failed. False if that took longer than `timeout` seconds."""
        if os.getpid() != self._pid:
            return True
        done = self.drain(timeout)
        with self._changed:
            if self._closed:
                return done
            self._closed = True
            if not done:
                error = TimeoutError("not done at the end of the program")
                self.losses.add(1, error, "the last job")
            self._changed.notify_all()
        if done and self._thread is not None:
            self._thread.join()
        self.losses.report()
        return done

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name_of(job: Callable[..., object]) -> str:
    return getattr(job, "__qualname__", None) or type(job).__name__
