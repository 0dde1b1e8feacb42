"""Files of the Parquet store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs
import pyarrow as pa
from pyarrow import parquet

from msmon.reading.errors import UnusableRun
from msmon.reading.row_files import Note, unsaid
from msmon_io import RunDir, run_dir_named

#: The data set lies beside the run directories.
DATA_SET = "parquet"

_FILE = re.compile(r"(?P<run>.+)_\d+(?:\.\d+)?\.parquet")


def stored_runs(output_dir: Path) -> list[RunDir]:
    """The run directories whose rows are in the store, whether they are there or not."""
    found = {run for _, run in _files(output_dir, "*")}
    runs = (run_dir_named(output_dir / name) for name in sorted(found))
    return [run for run in runs if run is not None]


def parquet_files(output_dir: Path, rank: int, run: str) -> dict[str, list[ParquetFile]]:
    """What a rank wrote in one run, by data type.

    Args:
        output_dir: the directory that holds the run directories and the store.
        run: the name of the run directory.
    """
    found: dict[str, list[ParquetFile]] = {}
    for path, own in sorted(_files(output_dir, str(rank))):
        if own == run:
            data_type = unquote(path.parent.name.partition("=")[2])
            found.setdefault(data_type, []).append(_open(path))
    return found


def _files(output_dir: Path, rank: str) -> Iterator[tuple[Path, str]]:
    for path in (output_dir / DATA_SET).glob(f"rank={rank}/data_type=*/*.parquet"):
        match = _FILE.fullmatch(path.name)
        if match:
            yield path, match["run"]


def _open(path: Path) -> ParquetFile:
    try:
        metadata = parquet.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UnusableRun(f"{path} is no whole Parquet file ({error}); move it away to read the rest") from error
    names = metadata.schema.to_arrow_schema().names
    at = names.index("step")
    ranges = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    known = all(steps is not None and steps.has_min_max for steps in ranges)
    return ParquetFile(
        path=path,
        first_step=min((steps.min for steps in ranges), default=0) if known else 0,
        last_step=max((steps.max for steps in ranges), default=0) if known else 1 << 62,
        # `run` only repeats the name of the file.
        columns=tuple(name for name in names if name != "run"),
    )


@attrs.frozen(kw_only=True)
class ParquetFile:
    """One file of the data set, which has some 65,000 rows, or 262,000 if it was converted."""

    path: Path
    first_step: int
    last_step: int
    columns: tuple[str, ...]

    def load(self, columns: Sequence[str], note: Note = unsaid) -> Any:
        wanted = [column for column in self.columns if column in columns]
        table = parquet.ParquetFile(self.path, read_dictionary=["name"]).read(columns=wanted)
        if "micro_step" in wanted and table["micro_step"].null_count == table.num_rows:
            table = table.drop_columns(["micro_step"])
        return table
