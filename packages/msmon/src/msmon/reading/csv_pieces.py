"""CSV files as pieces: read by pyarrow, or line by line where a line is broken."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
from pyarrow import csv as arrow_csv

from msmon.reading.errors import UnusableRun
from msmon.reading.statistics import TEXT
from msmon_io import BrokenLine, Table, data_type_of, decode_cell, read_csv, utf8

_INTEGERS = ("vpp_stage", "step", "micro_step")


def csv_pieces(directory: Path) -> dict[str, list[CsvPiece]]:
    """The CSV files of a run directory by data type, in the order of their steps."""
    found: dict[str, list[CsvPiece]] = {}
    for path in directory.glob("*.csv"):
        data_type = data_type_of(path)
        if data_type is not None and path.is_file():
            first, last = path.stem.rpartition("_")[2].split("-")
            piece = CsvPiece(path=path, first_step=int(first), last_step=int(last))
            found.setdefault(data_type, []).append(piece)
    for pieces in found.values():
        pieces.sort(key=lambda piece: (piece.first_step, piece.last_step))
    return found


@attrs.frozen(kw_only=True, slots=False)
class CsvPiece:
    """One CSV file: `<data type>_<first step>-<last step>.csv`."""

    path: Path
    first_step: int
    last_step: int

    @cached_property
    def columns(self) -> tuple[str, ...]:
        # As read_csv reads it, so that the columns have the same names there.
        with self.path.open(newline="\n", encoding="utf-8-sig", errors="backslashreplace") as file:
            line = file.readline().rstrip("\r\n")
        try:
            cells = next(csv.reader([line]), [])
        except csv.Error:
            cells = []  # read_csv says what is wrong with it
        header = [utf8(decode_cell(cell)) for cell in cells]
        if header and not {"name", "step"} <= set(header):
            raise UnusableRun(f"{self.path}: the header has no columns `name` and `step`, but {header}")
        return tuple(header)

    def load(self, columns: Sequence[str]) -> tuple[Any, list[str]]:
        wanted = [column for column in self.columns if column in columns]
        # To Arrow, no columns mean all columns.
        if not wanted or not self._ends_with_a_whole_line():
            return self._load_by_line(wanted)
        convert = arrow_csv.ConvertOptions(
            column_types={column: _kind(column) for column in wanted},
            include_columns=wanted,
            # Without this list "nan" would be read as an empty cell.
            null_values=[""],
            strings_can_be_null=False,
        )
        try:
            table = arrow_csv.read_csv(self.path, convert_options=convert)
        except pa.ArrowException:  # also a header with a column that is no UTF-8 text
            return self._load_by_line(wanted)
        if any(table[column].null_count for column in wanted if column in _INTEGERS):
            return self._load_by_line(wanted)  # an empty cell where a number must be
        return _decode_names(table), []

    def _ends_with_a_whole_line(self) -> bool:
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    def _load_by_line(self, wanted: Sequence[str]) -> tuple[Any, list[str]]:
        broken: list[BrokenLine] = []
        try:
            tables = list(read_csv(self.path, on_broken=broken.append))
        except ValueError as error:
            return _arrow_table(wanted, []), [f"{error}: the file was passed over"]
        return _arrow_table(wanted, tables), [str(line) for line in broken]


def _decode_names(table: Any) -> Any:
    names = table["name"].unify_dictionaries()
    chunks = []
    for chunk in names.chunks:
        texts = chunk.dictionary.to_pylist()
        if not any("\\" in text or text.startswith("'") for text in texts):
            return table
        decoded = pa.array([utf8(decode_cell(text)) for text in texts], type=pa.string())
        chunks.append(pa.DictionaryArray.from_arrays(chunk.indices, decoded))
    return table.set_column(table.column_names.index("name"), "name", pa.chunked_array(chunks, type=names.type))


def _kind(column: str) -> Any:
    if column in _INTEGERS:
        return pa.int64()
    if column == "name":
        return pa.dictionary(pa.int32(), pa.string())
    return pa.string() if column in TEXT else pa.float64()


def _arrow_table(wanted: Sequence[str], tables: Sequence[Table]) -> Any:
    columns: dict[str, list[Any]] = {column: [] for column in wanted}
    for table in tables:
        numbers = table.number_ops
        rows = table.rows()
        for column, values in columns.items():
            if column == "step":
                values += [table.step] * len(table)
            elif column == "name":
                values += map(utf8, table.names)
            elif column == "vpp_stage":
                values += table.vpp_stages
            elif column == "micro_step":
                values += table.micro_steps or [0] * len(table)
            elif column in table.text:
                values += map(utf8, table.text[column])
            else:
                at = numbers.index(column)
                values += [row[at] for row in rows]
    return pa.table({column: pa.array(values, type=_kind(column)) for column, values in columns.items()})
