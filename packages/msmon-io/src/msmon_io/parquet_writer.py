"""Tables to one hive-partitioned Parquet data set beside the run directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msmon_io.cells import utf8
from msmon_io.csv_writer import check_data_type
from msmon_io.files import PathLike
from msmon_io.losses import Losses
from msmon_io.numbers import COUNT_OPS
from msmon_io.table import Table

try:
    import pyarrow as pa

    from msmon_io.growing_part import GrowingPart, stream_path, unused_part
except ImportError as error:
    raise ImportError("Parquet files need pyarrow: pip install 'msmon-io[parquet]'") from error

DATA_SET = "parquet"
"""The directory of the data set in the output directory."""

# Some 64 MB. Then the next file begins.
ROWS_PER_FILE = 1 << 21
# What a file system that refuses writes may cost in memory, for each data type.
_UNWRITTEN_ROWS = 1 << 16


def text_column(texts: Sequence[str]) -> pa.Array:
    """Names and other texts, each of them once."""
    return pa.array(map(utf8, texts), pa.string(), size=len(texts)).dictionary_encode()


def to_arrow(table: Table, run: str, names: pa.Array | None = None) -> pa.Table:
    """The table as Arrow columns: run, vpp_stage, name, step, micro_step (null where there is none), statistics.

    Statistics are float64; `nans` and `infs` are int64, null where they are not known.

    Args:
        names: `text_column` of the table's names, where it is at hand.
    """
    rows = len(table)
    columns: dict[str, pa.Array] = {
        "run": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [run]),
        "vpp_stage": pa.array(table.vpp_stages, pa.int32()),
        "name": text_column(table.names) if names is None else names,
        "step": pa.array([table.step] * rows, pa.int64()),
        "micro_step": pa.nulls(rows, pa.int32())
        if table.micro_steps is None
        else pa.array(table.micro_steps, pa.int32()),
    }
    values = table.array()
    by_column = zip(*table.rows(), strict=True) if values is None else values.T.astype("float64")
    numbers = dict(zip(table.number_ops, by_column, strict=True)) if rows else {}
    for op in table.ops:
        if op in table.text:
            columns[op] = text_column(table.text[op])
        else:
            columns[op] = number_column(numbers.get(op, ()), op)
    return pa.table(columns)


def number_column(values: Sequence[float], op: str) -> pa.Array:
    """One statistic."""
    if op not in COUNT_OPS:
        return pa.array(values, pa.float64())
    return pa.array(values, pa.float64(), from_pandas=True).cast(pa.int64())


def part_path(data_set: Path, *, rank: int, data_type: str, run: str, first_step: int) -> Path:
    """A file of the data set that does not exist yet."""
    directory = data_set / f"rank={rank}" / f"data_type={check_data_type(data_type)}"
    return unused_part(directory / f"{run}_{first_step}.parquet")


class ParquetWriter:
    """Writes tables into `<output directory>/parquet/rank=<r>/data_type=<type>/<run directory>_<first step>.parquet`.

    All ranks (and runs) of one output directory share the data set, which DuckDB, Polars, Spark, Dask and pandas read
    as it is; the column `run` tells runs apart. A file is whole at any moment. Each step is appended to an Arrow
    stream beside it (`_<name>.arrows`), from which the file is made again whenever that takes less than a hundredth of
    the time, when it has some two million rows, and at the end; then the stream goes. What cannot be written is logged
    once, counted in `losses` and reported by `close`; nothing is raised for it.

    Args:
        run_dir: this rank's run directory; the data set lies beside it.
        rank: this rank.

    Raises:
        ImportError: pyarrow is not installed; the message says how to install it.
    """

    def __init__(self, run_dir: PathLike, *, rank: int = 0) -> None:
        run_path = Path(os.path.realpath(run_dir))
        self.run = run_path.name
        self.rank = rank
        self.data_set = run_path.parent / DATA_SET
        self.losses = Losses(part="parquet")
        self._root = run_path.parent
        self._parts: dict[str, GrowingPart] = {}
        self._names: dict[str, tuple[list[str], pa.Array]] = {}
        self._step: int | None = None
        self._has_news = False

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""
        if self._step != table.step:
            self.flush()
            self._step = table.step
        if not len(table):
            return
        try:
            self._add(table)
        except (ValueError, TypeError, OSError, pa.ArrowException) as error:
            self.losses.add(len(table), error, f"{table.data_type} of step {table.step}")

    def _add(self, table: Table) -> None:
        names = list(table.names)
        known, column = self._names.get(table.data_type, (None, None))
        if known != names:
            column = text_column(names)
            self._names[table.data_type] = names, column
        rows = to_arrow(table, self.run, column)
        part = self._parts.get(table.data_type)
        if part and (part.rows >= ROWS_PER_FILE or part.schema != rows.schema):
            self._close_part(self._parts.pop(table.data_type))
            part = None
        if part is None:
            path = part_path(
                self.data_set, rank=self.rank, data_type=table.data_type, run=self.run, first_step=table.step
            )
            part = self._parts[table.data_type] = GrowingPart(path=path, root=self._root, schema=rows.schema)
        part.add(rows)
        self._has_news = True

    def _close_part(self, part: GrowingPart) -> None:
        try:
            part.append()
            part.close()
        except (OSError, pa.ArrowException) as error:
            self.losses.add(
                part.drop_unwritten(), error, f"{part.path} (what was written is in {stream_path(part.path)})"
            )

    def flush(self) -> None:
        """Bring the rows of the step to the disk."""
        if not self._has_news:
            return
        self._has_news = False
        for part in self._parts.values():
            try:
                part.append()
                part.publish()
            except (OSError, pa.ArrowException) as error:
                # A later step that can be written brings the rows to the disk.
                lost = part.drop_unwritten() if part.unwritten > _UNWRITTEN_ROWS else 0
                self.losses.add(lost, error, str(part.path))

    def close(self) -> None:
        """Flush, and report what could not be written."""
        for part in self._parts.values():
            self._close_part(part)
        self._parts = {}
        self.losses.report()

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
