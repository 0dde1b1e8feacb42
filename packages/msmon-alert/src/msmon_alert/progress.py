"""A progress bar on the terminal; silent where standard error is none."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_WIDTH = 30
_REDRAW_S = 0.1


class Progress:
    """Counts up to `total`, drawn on standard error."""

    def __init__(self, total: int, unit: str) -> None:
        self._total = total
        self._unit = unit
        self._done = 0
        self._drawn = 0.0
        self._visible = sys.stderr.isatty()

    def advance(self) -> None:
        """One more is done."""
        self._done += 1
        now = time.monotonic()
        if self._visible and now - self._drawn > _REDRAW_S:
            self._drawn = now
            filled = _WIDTH * self._done // max(self._total, 1)
            bar = "#" * filled + "." * (_WIDTH - filled)
            print(f"\r[{bar}] {self._done}/{self._total} {self._unit}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._visible and self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
