"""CSV files of a directory of runs to one Parquet data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msmon_io.conversion import Source, convert, reporter
from msmon_io.csv_reader import steps_of
from msmon_io.files import PathLike
from msmon_io.numbers import COUNT_OPS
from msmon_io.workers import Message

# More than while training: nobody waits for single steps, and larger files are read faster.
_ROWS_PER_FILE = 1 << 18

if TYPE_CHECKING:
    import pyarrow as pa

MADE_BY = "convert_to_parquet"


def convert_to_parquet(
    monitor_path: PathLike,
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: PathLike | None = None,
) -> Path:
    """Convert the CSV files of the run directories in a range of time to one hive-partitioned Parquet data set.

    The output is `rank=<r>/data_type=<type>/<run directory>_<first step>.parquet`, the same as
    `ParquetWriter` writes. A progress bar goes to stderr. A broken line is warned of, with file and line, and
    the rest is converted.

    Args:
        monitor_path: the output directory that holds the run directories.
        time_start: the first time stamp, as in the names of the run directories (`Dec03_21-34-40`); None: no limit.
        time_end: the last one.
        process_num: how many processes share the work.
        data_type_list: `grad_reduced`, ...; None: all there are.
        output_dirpath: default `<monitor_path>/parquet`. An existing directory is replaced only if this function
            made it.

    Returns:
        The output directory, absolute.

    Raises:
        ValueError: a bad time stamp, data type or number of processes, or nothing to convert.
        FileNotFoundError: `monitor_path` is no directory.
        FileExistsError: the output directory holds something else.
        ImportError: pyarrow is not installed; the message says how to install it.
        OSError: the output cannot be written; nothing of it is left.
    """
    from msmon_io.parquet_writer import DATA_SET

    def piece(number: int, source: Source, directory: Path) -> Message:
        run = source.run
        return {"run_dir": str(run.path), "rank": run.rank, "data_type": source.data_type, "data_set": str(directory)}

    return convert(
        monitor_path,
        time_start,
        time_end,
        process_num,
        data_type_list,
        output_dirpath,
        output_name=DATA_SET,
        made_by=MADE_BY,
        description="CSV to Parquet",
        function=f"{__name__}:convert_piece",
        piece=piece,
    )


def convert_piece(
    *,
    report: Callable[[Message], None],
    files: Sequence[str],
    run_dir: str,
    rank: int,
    data_type: str,
    data_set: str,
) -> Message:
    """Convert consecutive files of one rank and data type."""
    from msmon_io.arrow_csv import read_arrow
    from msmon_io.growing_part import write_part
    from msmon_io.parquet_writer import part_path

    run, root = os.path.basename(run_dir), Path(data_set)
    on_broken = reporter(report)
    rows = first_step = 0
    tables: list[pa.Table] = []

    def write() -> None:
        if any(table.num_rows for table in tables):
            path = part_path(root, rank=rank, data_type=data_type, run=run, first_step=first_step)
            write_part(path, (batch for table in tables for batch in table.to_batches()), root=root)
        tables.clear()

    for path in files:
        table = read_arrow(path, data_type, on_broken=on_broken, use_threads=False)
        if table is not None:
            table = _like_the_writer(table, run)
            is_full = sum(one.num_rows for one in tables) >= _ROWS_PER_FILE
            if tables and (is_full or tables[0].schema != table.schema):
                write()
            if not tables:
                first_step = steps_of(path)[0]
            tables.append(table)
            rows += table.num_rows
        report({"bytes": os.path.getsize(path)})
    write()
    return {"rows": rows}


def _like_the_writer(table: pa.Table, run: str) -> pa.Table:
    """The columns that `ParquetWriter` makes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = table.num_rows
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for op in COUNT_OPS & columns.keys():
        # What is no count, nan among them, is not known.
        is_count = pc.and_(pc.less(pc.abs(columns[op]), 2.0**53), pc.equal(columns[op], pc.floor(columns[op])))
        columns[op] = pc.if_else(is_count, columns[op], None).cast(pa.int64())
    leading = {
        "run": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [run]),
        **{name: columns.pop(name) for name in ("vpp_stage", "name", "step")},
        "micro_step": columns.pop("micro_step", pa.nulls(rows, pa.int32())),
    }
    return pa.table({**leading, **columns})
