"""CSV files of a run to TensorBoard, one point a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msmon_io.cells import utf8
from msmon_io.conversion import Source, convert, reporter
from msmon_io.csv_reader import Header, HeaderError, Row, read_rows
from msmon_io.files import PathLike
from msmon_io.run_dirs import format_stamp
from msmon_io.workers import Message

if TYPE_CHECKING:
    from msmon_io.event_file import EventFile

MADE_BY = "csv2tensorboard_by_step"
# Written to disk in portions of about this size, so that memory does not grow with the files.
_PORTION_BYTES = 1 << 20
_POINTS_AT_ONCE = 4096


def csv2tensorboard_by_step(
    monitor_path: PathLike,
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: PathLike | None = None,
) -> Path:
    """Convert the CSV files of the run directories in a range of time to TensorBoard.

    The output is `rank<r>/<data type>/events...` with tags `vp<stage>:<name>/<op>`, and
    `vp<stage>:<name>:micro<m>/<op>` where there are micro-steps. A progress bar goes to stderr. A broken line is
    warned of, with file and line, and the rest is converted.

    Args:
        monitor_path: the output directory that holds the run directories.
        time_start: the first time stamp, as in the names of the run directories (`Dec03_21-34-40`); None: no limit.
        time_end: the last one.
        process_num: how many processes share the work.
        data_type_list: `grad_reduced`, ...; None: all there are.
        output_dirpath: default `<monitor_path>/<now>-csv2tensorboard_by_step`. An existing directory is replaced
            only if this function made it.

    Returns:
        The output directory, absolute.

    Raises:
        ValueError: a bad time stamp, data type or number of processes, or nothing to convert.
        FileNotFoundError: `monitor_path` is no directory.
        FileExistsError: the output directory holds something else.
        ImportError: tensorboard is not installed; the message says how to install it.
        OSError: the output cannot be written; nothing of it is left.
    """
    from msmon_io.event_file import event_file_name

    def piece(number: int, source: Source, directory: Path) -> Message:
        # Numbers rise with the steps: TensorBoard reads the files of one directory in the order of their names.
        path = directory / f"rank{source.run.rank}" / source.data_type / event_file_name(number)
        return {"data_type": source.data_type, "event_file": str(path), "root": str(directory)}

    return convert(
        monitor_path,
        time_start,
        time_end,
        process_num,
        data_type_list,
        output_dirpath,
        output_name=f"{format_stamp(datetime.now())}-{MADE_BY}",
        made_by=MADE_BY,
        description="CSV to TensorBoard",
        function=f"{__name__}:convert_piece",
        piece=piece,
    )


def convert_piece(
    *, report: Callable[[Message], None], files: Sequence[str], data_type: str, event_file: str, root: str
) -> Message:
    """Convert consecutive files of one rank and data type into one event file."""
    from msmon_io.event_file import EventFile

    out = EventFile(Path(event_file), root=root)
    on_broken = reporter(report)
    done = 0
    for path in files:
        try:
            header, rows = read_rows(path, data_type, on_broken=on_broken)
        except HeaderError as error:
            on_broken(error.broken)
        else:
            done += _convert_rows(out, header, "micro_step" in header.columns(data_type), rows)
        report({"bytes": os.path.getsize(path)})
    out.flush()
    return {"rows": done}


def _convert_rows(out: EventFile, header: Header, has_micro_step: bool, rows: Iterator[Row]) -> int:
    tags: dict[tuple[int, str, int], list[str]] = {}
    done = step = 0
    scalars: list[tuple[str, float]] = []
    for stage, name, row_step, micro_step, numbers, _ in rows:
        if row_step != step or len(scalars) >= _POINTS_AT_ONCE:
            out.add_scalars(step, scalars)
            step, scalars = row_step, []
            if out.pending_bytes > _PORTION_BYTES:
                out.flush()
        key = (stage, name, micro_step)
        row_tags = tags.get(key)
        if row_tags is None:
            start = utf8(f"vp{stage}:{name}:micro{micro_step}" if has_micro_step else f"vp{stage}:{name}")
            row_tags = tags[key] = [f"{start}/{op}" for op in header.number_ops]
        scalars += zip(row_tags, numbers, strict=True)
        done += 1
    out.add_scalars(step, scalars)
    return done
