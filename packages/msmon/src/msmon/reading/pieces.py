"""The files of one rank in pieces that are loaded one at a time: a CSV file, or a row group of a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

#: The columns that say which tensor a row is about; all others are statistics.
KEYS = ("vpp_stage", "name", "step", "micro_step")


class Piece(Protocol):
    """Rows of one data type on one rank."""

    @property
    def path(self) -> Path: ...

    @property
    def first_step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the file."""

    def load(self, columns: Sequence[str]) -> tuple[Any, list[str]]:
        """A pyarrow table of those of `columns` that the piece has, and notes about rows that could not be read.

        `name` comes dictionary-encoded; the statistics come as float64, with null where a cell is empty.
        """
