"""CSV files of a run directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from msmon.reading.row_files import Note, RowFile
from msmon_io import HeaderError, data_types_of, read_arrow, read_header, steps_of


def csv_files(directory: Path) -> dict[str, list[RowFile]]:
    """The CSV files of a run directory, `<data type>_<first step>-<last step>.csv`, by data type."""
    found: dict[str, list[RowFile]] = {}
    for path in directory.glob("*.csv"):
        for data_type in data_types_of(path) if path.is_file() else ():
            first, last = steps_of(path)
            columns, read = _columns(path, data_type), partial(_read, path, data_type)
            file = RowFile(first_step=first, last_step=last, columns=columns, read=read)
            found.setdefault(data_type, []).append(file)
    return found


def _columns(path: Path, data_type: str) -> tuple[str, ...]:
    try:
        return tuple(read_header(path).columns(data_type))
    except HeaderError:
        return ()  # which is said when it is loaded


def _read(path: Path, data_type: str, columns: list[str], note: Note) -> Any:
    table = read_arrow(path, data_type, on_broken=lambda broken: note(str(broken)))
    return pa.table({}) if table is None else table.select(columns)
