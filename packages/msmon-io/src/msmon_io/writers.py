"""Writers by name: what a configuration's `format` opens, our own and those that other packages bring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from attrs import frozen

from msmon_io.csv_writer import CsvWriter
from msmon_io.losses import Losses
from msmon_io.memory_writer import MemoryWriter
from msmon_io.table import Table

logger = logging.getLogger("msmon_io")

ENTRY_POINTS = "msmon_io.writers"
"""The entry-point group in which a package registers its writers: name -> `WriterFactory`."""


class Writer(Protocol):
    """What takes tables. All calls come from one thread, `flush` at the end of each step."""

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""

    def flush(self) -> None:
        """The step is over: bring what was taken to where it belongs."""

    def close(self) -> None:
        """The run is over."""


@frozen(kw_only=True)
class WriterContext:
    """What a writer may want to know. Fields may be added."""

    run_dir: Path
    """This rank's run directory; it exists."""
    rank: int = 0
    ndigits: int = 6
    """Digits of numbers written as text."""
    step_count_per_record: int = 1
    """Steps in one file, for writers that make a file for so many steps."""


WriterFactory = Callable[[WriterContext], Writer]


def _csv(context: WriterContext) -> Writer:
    return CsvWriter(context.run_dir, ndigits=context.ndigits, step_count_per_record=context.step_count_per_record)


def _tensorboard(context: WriterContext) -> Writer:
    from msmon_io.tensorboard_writer import TensorBoardWriter

    return TensorBoardWriter(context.run_dir, rank=context.rank)


def _parquet(context: WriterContext) -> Writer:
    from msmon_io.parquet_writer import ParquetWriter

    return ParquetWriter(context.run_dir, rank=context.rank)


def _memory(context: WriterContext) -> Writer:
    return MemoryWriter(rank=context.rank)


_BUILT_IN: dict[str, WriterFactory] = {"csv": _csv, "tensorboard": _tensorboard, "parquet": _parquet, "api": _memory}


def writer_names() -> list[str]:
    """The formats that can be opened, ours first."""
    found = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return [*_BUILT_IN, *sorted(found - _BUILT_IN.keys())]


def open_writer(name: str, context: WriterContext) -> Writer:
    """The writer of a format. Our own names go before those of other packages.

    Raises:
        ValueError: no such format; the message lists what there is.
        ImportError: the format needs a package that is not installed; the message names it.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name](context)
    for point in entry_points(group=ENTRY_POINTS, name=name):
        factory: WriterFactory = point.load()
        return factory(context)
    raise ValueError(f"format: {name!r} is not known; there are {', '.join(map(repr, writer_names()))}")


class Writers:
    """Several writers as one. One that fails does not keep the others from writing.

    An exception is logged once for each writer, counted in its entry of `losses` and reported by `close`.

    >>> memory = MemoryWriter()
    >>> writers = Writers([("api", memory)])
    >>> writers.write(Table(data_type="actv", step=0, names=[], vpp_stages=[], ops=["norm"], values=[]))
    >>> writers.close()
    """

    def __init__(self, writers: Sequence[tuple[str, Writer]]) -> None:
        self.writers = dict(writers)
        self.losses = {name: Losses(part=name) for name in self.writers}

    def write(self, table: Table) -> None:
        """Hand the table to every writer."""
        for name, writer in self.writers.items():
            self._guard(name, len(table), partial(writer.write, table), f"step {table.step}")

    def flush(self) -> None:
        """Flush every writer."""
        for name, writer in self.writers.items():
            self._guard(name, 0, writer.flush, "flush")

    def close(self) -> None:
        """Close every writer, and report what failed."""
        for name, writer in self.writers.items():
            self._guard(name, 0, writer.close, "close")
            self.losses[name].report()

    def _guard(self, name: str, rows: int, call: Callable[[], None], what: str) -> None:
        try:
            call()
        except Exception as error:
            self.losses[name].add(rows, error, what)
            logger.debug("the writer that failed", exc_info=True)


def open_writers(names: Sequence[str], context: WriterContext) -> Writers:
    """One writer for each format, as one.

    Raises:
        ValueError, ImportError: as `open_writer`.
    """
    return Writers([(name, open_writer(name, context)) for name in dict.fromkeys(names)])
