"""Tables to one hive-partitioned Parquet data set beside the run directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from msmon_io.cells import utf8
from msmon_io.csv_writer import check_data_type
from msmon_io.files import PathLike, inside, make_dir_inside, write_whole
from msmon_io.losses import Losses
from msmon_io.numbers import COUNT_OPS
from msmon_io.table import Table

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError("Parquet files need pyarrow: pip install 'msmon-io[parquet]'") from error

DATA_SET = "parquet"
"""The directory of the data set in the output directory."""

# A file grows, by being replaced, to about this many rows; then the next one begins.
ROWS_PER_FILE = 1 << 16


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


def write_part(path: Path, tables: Sequence[pa.Table], *, root: PathLike) -> None:
    """Write the tables as one Parquet file of a data set that lies in `root`.

    Raises:
        OSError, pa.ArrowException: it cannot be written; a file that was there is unharmed.
    """
    make_dir_inside(path.parent, root)
    whole = pa.concat_tables(tables).unify_dictionaries()
    # Of statistics hardly two are equal: to look for those that are takes as long as all the rest.
    repetitive = [column.name for column in whole.schema if column.type != pa.float64()]
    sink = pa.BufferOutputStream()
    pq.write_table(whole, sink, compression="zstd", use_dictionary=repetitive)
    write_whole(inside(path, root), memoryview(sink.getvalue()))


def part_path(data_set: Path, *, rank: int, data_type: str, run: str, first_step: int) -> Path:
    """A file of the data set that does not exist yet."""
    directory = data_set / f"rank={rank}" / f"data_type={check_data_type(data_type)}"
    # A resumed training may come to the same step again.
    number, path = 0, directory / f"{run}_{first_step}.parquet"
    while path.exists():
        number += 1
        path = directory / f"{run}_{first_step}.{number}.parquet"
    return path


@define(kw_only=True)
class _OpenFile:
    """A file that still grows: all its rows are kept until it is full."""

    path: Path
    tables: list[pa.Table] = field(factory=list)
    rows: int = 0
    unwritten: int = 0
    has_news: bool = False
    """Rows came since the last try to write it."""


class ParquetWriter:
    """Writes tables into `<output directory>/parquet/rank=<r>/data_type=<type>/<run directory>_<first step>.parquet`.

    All ranks (and runs) of one output directory share the data set, which DuckDB, Polars, Spark, Dask and pandas read
    as it is; the column `run` tells runs apart. A file is whole at any moment: it is replaced at each step until it
    has about 65,000 rows. What cannot be written is logged once, counted in `losses` and reported by
    `close`; nothing is raised for it.

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
        self._files: dict[str, _OpenFile] = {}
        self._names: dict[str, tuple[list[str], pa.Array]] = {}
        self._step: int | None = None

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
        file = self._files.get(table.data_type)
        if file and (file.rows >= ROWS_PER_FILE or file.tables[0].schema != rows.schema):
            self._write_file(self._files.pop(table.data_type), is_last_try=True)
            file = None
        if file is None:
            path = part_path(
                self.data_set, rank=self.rank, data_type=table.data_type, run=self.run, first_step=table.step
            )
            file = self._files[table.data_type] = _OpenFile(path=path)
        file.tables.append(rows)
        file.rows += len(table)
        file.unwritten += len(table)
        file.has_news = True

    def _write_file(self, file: _OpenFile, *, is_last_try: bool = False) -> None:
        if not file.unwritten or not (file.has_news or is_last_try):
            return
        file.has_news = False
        try:
            write_part(file.path, file.tables, root=self._root)
            file.unwritten = 0
        except (OSError, pa.ArrowException) as error:
            # Until the file is full its rows are kept, so a step that can be written brings them to the disk.
            self.losses.add(file.unwritten if is_last_try else 0, error, str(file.path))

    def flush(self) -> None:
        """Bring the rows of the step to the disk."""
        for file in self._files.values():
            self._write_file(file)

    def close(self) -> None:
        """Flush, and report what could not be written."""
        for file in self._files.values():
            self._write_file(file, is_last_try=True)
        self._files = {}
        self.losses.report()

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
