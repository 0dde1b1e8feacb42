"""CSV files of a run directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from msmon.reading.row_files import Note, RowFile
from msmon_io import HeaderError, data_type_of, read_arrow, read_header, steps_of


def csv_files(directory: Path) -> dict[str, list[RowFile]]:
    """The CSV files of a run directory, `<data type>_<first step>-<last step>.csv`, by data type."""
    found: dict[str, list[RowFile]] = {}
    for path in directory.glob("*.csv"):
        data_type = data_type_of(path)
        if data_type is not None and path.is_file():
            first, last = steps_of(path)
            file = RowFile(first_step=first, last_step=last, columns=_columns(path), read=partial(_read, path))
            found.setdefault(data_type, []).append(file)
    return found


def _columns(path: Path) -> tuple[str, ...]:
    try:
        return tuple(read_header(path).columns)
    except HeaderError:
        return ()  # which is said when it is loaded


def _read(path: Path, columns: list[str], note: Note) -> Any:
    table = read_arrow(path, on_broken=lambda broken: note(str(broken)))
    return pa.table({}) if table is None else table.select(columns)
