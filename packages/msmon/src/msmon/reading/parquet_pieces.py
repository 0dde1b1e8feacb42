"""Row groups of the Parquet store as pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs
import pyarrow as pa
from pyarrow import parquet

from msmon.reading.errors import UnusableRun
from msmon.reading.statistics import TEXT

#: The data set lies beside the run directories.
DATA_SET = "parquet"

_INTEGERS = ("vpp_stage", "step", "micro_step")
_FILE = re.compile(r"(?P<run>.+)_\d+(?:\.\d+)?\.parquet")


def stored_runs(output_dir: Path) -> dict[int, str]:
    """The run of each rank that the store was last written by, for an output directory without run directories."""
    newest: dict[int, tuple[float, str]] = {}
    for path in (output_dir / DATA_SET).glob("rank=*/data_type=*/*.parquet"):
        rank, match = path.parts[-3].partition("=")[2], _FILE.fullmatch(path.name)
        if match and rank.isdecimal():
            newest[int(rank)] = max((path.stat().st_mtime, match["run"]), newest.get(int(rank), (0.0, "")))
    return {rank: run for rank, (_, run) in newest.items()}


def parquet_pieces(output_dir: Path, rank: int, run: str) -> dict[str, list[ParquetPiece]]:
    """The row groups that a rank wrote in one run, by data type, in the order of their steps.

    Args:
        output_dir: the directory that holds the run directories and the store.
        run: the name of the run directory.
    """
    found: dict[str, list[ParquetPiece]] = {}
    for path in sorted((output_dir / DATA_SET / f"rank={rank}").glob("data_type=*/*.parquet")):
        match = _FILE.fullmatch(path.name)
        if match and match["run"] == run:
            data_type = unquote(path.parent.name.partition("=")[2])
            found.setdefault(data_type, []).extend(_row_groups(path))
    for pieces in found.values():
        pieces.sort(key=lambda piece: (piece.first_step, piece.last_step))
    return {data_type: pieces for data_type, pieces in found.items() if pieces}


def _row_groups(path: Path) -> list[ParquetPiece]:
    try:
        metadata = parquet.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UnusableRun(f"{path} is no whole Parquet file ({error}); move it away to read the rest") from error
    schema = metadata.schema.to_arrow_schema()
    # `run` only repeats the name of the file.
    columns = tuple(name for name in schema.names if name != "run")
    pieces = []
    for number in range(metadata.num_row_groups):
        steps = metadata.row_group(number).column(schema.names.index("step")).statistics
        known = steps is not None and steps.has_min_max
        first, last = (steps.min, steps.max) if known else (0, 1 << 62)
        piece = ParquetPiece(path=path, row_group=number, first_step=first, last_step=last, columns=columns)
        pieces.append(piece)
    return pieces


@attrs.frozen(kw_only=True)
class ParquetPiece:
    """One row group of a Parquet file."""

    path: Path
    row_group: int
    first_step: int
    last_step: int
    columns: tuple[str, ...]

    def load(self, columns: Sequence[str]) -> tuple[Any, list[str]]:
        wanted = [column for column in self.columns if column in columns]
        file = parquet.ParquetFile(self.path, read_dictionary=["name"])
        table = file.read_row_group(self.row_group, columns=wanted)
        if "micro_step" in wanted and table["micro_step"].null_count == table.num_rows:
            table = table.drop_columns(["micro_step"])
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
