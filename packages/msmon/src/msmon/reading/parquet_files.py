"""Files of the Parquet store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from msmon.reading.errors import UnusableRun
from msmon.reading.row_files import Note, RowFile
from msmon_io import RunDir, row_groups, run_dir_named, stream_batches, stream_path

#: The data set lies beside the run directories.
DATA_SET = "parquet"

_FILE = re.compile(r"(?P<run>.+)_\d+(?:\.\d+)?\.parquet")


def stored_runs(output_dir: Path) -> list[RunDir]:
    """The run directories whose rows are in the store, whether they are there or not."""
    found = {run for _, run in _files(output_dir, "*")}
    runs = (run_dir_named(output_dir / name) for name in sorted(found))
    return [run for run in runs if run is not None]


def parquet_files(output_dir: Path, rank: int, run: str) -> dict[str, list[RowFile]]:
    """What a rank wrote in one run, by data type.

    Args:
        output_dir: the directory that holds the run directories and the store.
        run: the name of the run directory.
    """
    found: dict[str, list[RowFile]] = {}
    for path, own in sorted(_files(output_dir, str(rank))):
        if own == run:
            data_type = unquote(path.parent.name.partition("=")[2])
            found.setdefault(data_type, []).extend(_streamed(path) or _row_groups(path))
    return found


def _files(output_dir: Path, rank: str) -> Iterator[tuple[Path, str]]:
    """Also those that are a stream only."""
    for suffix in (".parquet", ".arrows"):
        for path in (output_dir / DATA_SET).glob(f"rank={rank}/data_type=*/*{suffix}"):
            part = path if suffix == ".parquet" else path.with_name(f"{path.stem.removeprefix('_')}.parquet")
            match = _FILE.fullmatch(part.name)
            if match and (part == path or not part.exists()):
                yield part, match["run"]


def _streamed(part: Path) -> list[RowFile]:
    """While a file grows, and if its writer was killed, its stream has all rows; else there is none."""
    try:
        tables = list(row_groups(stream_batches(stream_path(part))))
    except OSError:
        return []
    steps = [pc.min_max(table["step"]).as_py() for table in tables]
    return [
        RowFile(
            first_step=ends["min"], last_step=ends["max"], columns=_columns(table.schema), read=partial(_select, table)
        )
        for table, ends in zip(tables, steps, strict=True)
    ]


def _row_groups(path: Path) -> list[RowFile]:
    try:
        metadata = parquet.read_metadata(path)
    except FileNotFoundError:
        return []  # a stream alone, without a whole row
    except (pa.ArrowInvalid, OSError) as error:
        raise UnusableRun(f"{path} is no whole Parquet file ({error}); move it away to read the rest") from error
    schema = metadata.schema.to_arrow_schema()
    at = schema.names.index("step")
    ranges = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    return [
        RowFile(
            first_step=steps.min if steps and steps.has_min_max else 0,
            last_step=steps.max if steps and steps.has_min_max else 1 << 62,
            columns=_columns(schema),
            read=partial(_read, path, number),
        )
        for number, steps in enumerate(ranges)
    ]


def _columns(schema: pa.Schema) -> tuple[str, ...]:
    # `run` only repeats the name of the file.
    return tuple(name for name in schema.names if name != "run")


def _read(path: Path, number: int, columns: list[str], note: Note) -> Any:
    """A row group, of some 131,000 rows."""
    return _without_nulls(parquet.ParquetFile(path, read_dictionary=["name"]).read_row_group(number, columns=columns))


def _select(table: pa.Table, columns: list[str], note: Note) -> Any:
    """As many rows of a stream, mapped into memory."""
    return _without_nulls(table.select(columns))


def _without_nulls(table: pa.Table) -> pa.Table:
    if "micro_step" in table.column_names and table["micro_step"].null_count == table.num_rows:
        return table.drop_columns(["micro_step"])
    return table
