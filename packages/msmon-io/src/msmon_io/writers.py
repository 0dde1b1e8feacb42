"""Writers by name: what a configuration's `format` opens, our own and those that other packages bring."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from attrs import frozen

from msmon_io.csv_writer import CsvWriter
from msmon_io.memory_writer import MemoryWriter
from msmon_io.table import Table

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
