"""CSV files of a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from msmon.reading.row_files import Note, unsaid
from msmon_io import HeaderError, data_types_of, read_arrow, read_header, steps_of


def csv_files(directory: Path) -> dict[str, list[CsvFile]]:
    """The CSV files of a run directory by data type."""
    found: dict[str, list[CsvFile]] = {}
    for path in directory.glob("*.csv"):
        if path.is_file():
            for data_type in data_types_of(path):
                first, last = steps_of(path)
                file = CsvFile(path=path, data_type=data_type, first_step=first, last_step=last)
                found.setdefault(data_type, []).append(file)
    return found


@attrs.frozen(kw_only=True, slots=False)
class CsvFile:
    """One CSV file: `<data type>_<first step>-<last step>.csv`."""

    path: Path
    data_type: str
    first_step: int
    last_step: int

    @cached_property
    def columns(self) -> tuple[str, ...]:
        try:
            return tuple(read_header(self.path).columns(self.data_type))
        except HeaderError:
            return ()  # which is said when it is loaded

    def load(self, columns: Sequence[str], note: Note = unsaid) -> Any:
        table = read_arrow(self.path, self.data_type, on_broken=lambda broken: note(str(broken)))
        return pa.table({}) if table is None else table.select([name for name in table.column_names if name in columns])
