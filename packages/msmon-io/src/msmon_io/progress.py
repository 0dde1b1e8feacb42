"""How far a conversion is: a bar where rich is installed, else a plain line."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any


class Progress:
    """Shows on stderr how many of `total` units are done. Threads may share it."""

    def __init__(self, total: int, description: str) -> None:
        self._total = max(1, total)
        self._description = description
        self._done = 0
        self._shown = -1
        self._lock = threading.Lock()
        self._bar: Any = None
        try:
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        self._bar = RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._bar.add_task(description, total=self._total)

    def advance(self, units: int) -> None:
        """So many more are done."""
        with self._lock:
            self._done += units
            if self._bar is not None:
                self._bar.advance(self._task, units)
                return
            percent = min(100, 100 * self._done // self._total)
            on_terminal = sys.stderr.isatty()
            if percent >= self._shown + (1 if on_terminal else 10) or (percent == 100 and self._shown < 100):
                self._shown = percent
                ends = ("\r", "\n" if percent == 100 else "") if on_terminal else ("", "\n")
                print(f"{ends[0]}{self._description}: {percent} %", end=ends[1], file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
