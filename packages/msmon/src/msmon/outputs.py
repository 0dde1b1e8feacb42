"""Where results go: the run directory, the writers that the configuration asks for, and the files beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msmon_io
from msmon.config import Config
from msmon_io import Table

logger = logging.getLogger("msmon")


class Writer(Protocol):
    """What takes the tables of a step."""

    def write(self, table: Table) -> None:
        """Take a table."""

    def flush(self) -> None:
        """The step is over."""

    def close(self) -> None:
        """Nothing more will come."""


def _csv(run_dir: Path, config: Config, rank: int) -> Writer:
    return msmon_io.CsvWriter(run_dir, ndigits=config.ndigits, step_count_per_record=config.step_count_per_record)


_WRITERS: dict[str, Callable[[Path, Config, int], Writer]] = {"csv": _csv}


def make_run_dir(config: Config, output_dir: Path, rank: int) -> Path | None:
    """The directory of this run and rank, or None where the configuration writes no files.

    Raises:
        OSError: it cannot be created; the message says which and what to do.
    """
    if not any(name in _WRITERS for name in config.format):
        return None
    try:
        if config.append_output:
            start, end = config.append_output
            return msmon_io.find_run_dir(output_dir, rank, start, end)
        return msmon_io.create_run_dir(output_dir, rank)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the output directory cannot be created: {error.strerror}; set MONITOR_OUTPUT_DIR to a directory that "
            "can be written",
            str(output_dir),
        ) from error


def make_writers(config: Config, run_dir: Path | None, rank: int) -> list[Writer]:
    """One writer for each format that writes files."""
    if run_dir is None:
        return []
    return [_WRITERS[name](run_dir, config, rank) for name in config.format if name in _WRITERS]


class JsonFile:
    """A JSON file of the run directory that is written several times; a failure is logged once."""

    def __init__(self, run_dir: Path | None, name: str) -> None:
        self._path = None if run_dir is None else run_dir / name
        self._failed = False

    def write(self, document: dict[str, Any]) -> None:
        """Replace the file."""
        if self._path is None:
            return
        try:
            msmon_io.write_json(self._path, document, root=self._path.parent)
        except Exception as error:
            if not self._failed:
                self._failed = True
                logger.error("%s was not written, training goes on: %s", self._path, error)
