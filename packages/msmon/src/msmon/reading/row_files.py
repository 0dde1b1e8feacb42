"""The files of one rank, loaded one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

#: The columns that say which tensor a row is about; all others are statistics.
KEYS = ("vpp_stage", "name", "step", "micro_step")

Note = Callable[[str], None]


@attrs.frozen(kw_only=True, eq=False)
class RowFile:
    """A file, or a part of one, with rows of one data type on one rank."""

    first_step: int
    last_step: int
    columns: tuple[str, ...]
    """The names of the columns, in the order of the file."""
    read: Callable[[list[str], Note], Any]
    """Reads these columns of it; see `load`."""

    def load(self, columns: Sequence[str], note: Note = lambda text: None) -> Any:
        """A pyarrow table of those of `columns` that the file has.

        `name` comes dictionary-encoded; the statistics come as numbers, with null where one is not known.

        Args:
            note: told of rows that could not be read. Not by those who read a file again, of which everything was said.
        """
        return self.read([name for name in self.columns if name in columns], note)
