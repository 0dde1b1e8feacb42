"""The files of one rank, loaded one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: The columns that say which tensor a row is about; all others are statistics.
KEYS = ("vpp_stage", "name", "step", "micro_step")

Note = Callable[[str], None]


def unsaid(text: str) -> None:
    """For those who read a file again, of which everything was said."""


class RowFile(Protocol):
    """A file with rows of one data type on one rank."""

    @property
    def first_step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the file."""

    def load(self, columns: Sequence[str], note: Note = unsaid) -> Any:
        """A pyarrow table of those of `columns` that the file has; `note` is told of rows that could not be read.

        `name` comes dictionary-encoded; the statistics come as numbers, with null where one is not known.
        """
