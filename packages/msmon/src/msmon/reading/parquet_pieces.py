"""Row groups of the Parquet store as pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs
import pyarrow as pa
from pyarrow import parquet

from .errors import UnusableRun
from .statistics import TEXT

_INTEGERS = ("vpp_stage", "step", "micro_step")
_PARTITION = "data_type="


def parquet_pieces(directory: Path) -> dict[str, list[ParquetPiece]]:
    """The row groups of the Parquet files under a run directory by data type, in the order of their steps."""
    found: dict[str, list[ParquetPiece]] = {}
    for path in sorted(directory.rglob("*.parquet")):
        parts = [part for part in path.relative_to(directory).parts if part.startswith(_PARTITION)]
        if parts:
            found.setdefault(unquote(parts[-1][len(_PARTITION) :]), []).extend(_row_groups(path))
    for pieces in found.values():
        pieces.sort(key=lambda piece: (piece.first_step, piece.last_step))
    return {data_type: pieces for data_type, pieces in found.items() if pieces}


def _row_groups(path: Path) -> list[ParquetPiece]:
    try:
        metadata = parquet.read_metadata(path)
    except pa.ArrowInvalid as error:
        raise UnusableRun(f"{path} is no complete Parquet file ({error}); move it away to read the rest") from error
    at = metadata.schema.names.index("step")
    pieces = []
    for number in range(metadata.num_row_groups):
        steps = metadata.row_group(number).column(at).statistics
        known = steps is not None and steps.has_min_max
        first, last = (steps.min, steps.max) if known else (0, 1 << 62)
        pieces.append(ParquetPiece(path=path, row_group=number, first_step=first, last_step=last))
    return pieces


@attrs.frozen(kw_only=True, slots=False)
class ParquetPiece:
    """One row group of a Parquet file."""

    path: Path
    row_group: int
    first_step: int
    last_step: int

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(parquet.read_schema(self.path).names)

    def load(self, columns: Sequence[str]) -> tuple[Any, list[str]]:
        wanted = [column for column in self.columns if column in columns]
        file = parquet.ParquetFile(self.path, read_dictionary=["name"])
        table = file.read_row_group(self.row_group, columns=wanted)
        for number, column in enumerate(table.column_names):
            kind = _kind(column)
            if table.schema.field(number).type != kind:
                table = table.set_column(number, column, table[column].cast(kind))
        return table, []


def _kind(column: str) -> Any:
    if column in _INTEGERS:
        return pa.int64()
    if column == "name":
        return pa.dictionary(pa.int32(), pa.string())
    return pa.string() if column in TEXT else pa.float64()
