"""How far something is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, description: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, by rich; nothing where that is not installed, or stderr is no terminal.

    Yields:
        What to call when so many more of `total` units are done; threads may share it.

    Example:
        >>> with progress_bar(2, "files") as advance:
        ...     advance(1)
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda units: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(description, total=max(total, 1))
        yield lambda units: bar.advance(task, units)
