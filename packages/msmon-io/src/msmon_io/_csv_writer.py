"""Tables to CSV files, ``<data type>_<first step>-<last step>.csv``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msmon_io._cells import encode_cell
from msmon_io._files import PathLike, append_whole, inside, replacing, write_whole
from msmon_io._losses import Losses
from msmon_io._numbers import format_column
from msmon_io._table import Table

# Up to this size a file that grows is written anew beside the old one and takes its place, so that even `kill -9`
# in the middle leaves whole lines. Beyond it that would cost more than it is worth: lines are appended, and a line
# cut by a kill is passed over by the reader and removed by the next writer.
_REWRITE_LIMIT = 4 << 20

_DATA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_data_type(data_type: str) -> str:
    """The data type, if it can be a part of a file name."""
    if not _DATA_TYPE.fullmatch(data_type):
        raise ValueError(f"{data_type!r} is no data type: letters, digits, '_', '.' and '-' only, at most 100")
    return data_type


def record_name(data_type: str, step: int, step_count_per_record: int) -> str:
    """The file of a step: files cover the steps n*k to n*k+k-1, whatever the sampling interval.

    >>> record_name("grad_reduced", 7, 5)
    'grad_reduced_5-9.csv'
    """
    first = step - step % step_count_per_record
    return f"{check_data_type(data_type)}_{first}-{first + step_count_per_record - 1}.csv"


def header(table: Table) -> str:
    """The first line of the table's file, without the line end."""
    micro = ["micro_step"] if table.micro_steps is not None else []
    return ",".join(["vpp_stage", "name", "step", *micro, *map(encode_cell, table.ops)])


def csv_lines(table: Table, ndigits: int) -> str:
    """The table's rows as CSV lines, each with its line end, without the header."""
    if not len(table):
        return ""
    numbers = dict(zip(table.number_ops, zip(*table.rows(), strict=True), strict=True))
    columns: list[Sequence[object]] = [
        table.vpp_stages,
        [encode_cell(name) for name in table.names],
        [str(table.step)] * len(table),
    ]
    if table.micro_steps is not None:
        columns.append(table.micro_steps)
    for op in table.ops:
        if op in table.text:
            columns.append([encode_cell(text) for text in table.text[op]])
        else:
            columns.append(format_column(numbers[op], op, ndigits))
    line = ",".join(["%s"] * len(columns)) + "\n"
    return "".join([line % row for row in zip(*columns, strict=True)])


class CsvWriter:
    """Writes tables as CSV files in one run directory.

    Rows are gathered until the step is over (:meth:`flush`, or the first table of another step) and then reach the
    disk at once. What cannot be written is logged once, counted in :attr:`losses` and reported by :meth:`close`;
    nothing is raised for it, and the next step tries again.

    >>> import tempfile, pathlib
    >>> run_dir = pathlib.Path(tempfile.mkdtemp())
    >>> with CsvWriter(run_dir, ndigits=6) as writer:
    ...     writer.write(Table(data_type="grad_reduced", step=0, names=["w"], vpp_stages=[0],
    ...                        ops=["norm"], values=[[0.125]]))
    >>> print((run_dir / "grad_reduced_0-0.csv").read_text(), end="")
    vpp_stage,name,step,norm
    0,w,0,0.125
    """

    def __init__(self, run_dir: PathLike, *, ndigits: int = 6, step_count_per_record: int = 1) -> None:
        for name, value in (("ndigits", ndigits), ("step_count_per_record", step_count_per_record)):
            if value < 1:
                raise ValueError(f"{name}: {value} is not allowed; it must be an integer of at least 1")
        self.run_dir = Path(os.path.abspath(run_dir))
        self.ndigits = ndigits
        self.step_count_per_record = step_count_per_record
        self.losses = Losses("csv")
        self._step: int | None = None
        self._pending: dict[str, list[tuple[str, str, int]]] = {}
        self._headers: dict[str, str] = {}

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""
        if self._step != table.step:
            self.flush()
            self._step = table.step
        try:
            name = record_name(table.data_type, table.step, self.step_count_per_record)
            rows = (header(table), csv_lines(table, self.ndigits), len(table))
        except (ValueError, TypeError) as error:
            self.losses.add(len(table), error, f"{table.data_type} of step {table.step}")
            return
        if len(table):
            self._pending.setdefault(name, []).append(rows)

    def flush(self) -> None:
        """Bring the rows of the step to the disk."""
        pending, self._pending = self._pending, {}
        for name, parts in pending.items():
            try:
                self._commit(name, parts[0][0], "".join([lines for _, lines, _ in parts]))
            except (OSError, ValueError) as error:
                self.losses.add(sum(rows for _, _, rows in parts), error, str(self.run_dir / name))

    def _commit(self, name: str, first_line: str, lines: str) -> None:
        path = inside(self.run_dir / name, self.run_dir)
        data = lines.encode()
        if name not in self._headers and not path.exists():
            write_whole(path, first_line.encode() + b"\n" + data)
        else:
            if name not in self._headers:
                mend(path, first_line)
            elif self._headers[name] != first_line:
                raise ValueError(f"the file has the columns {self._headers[name]}, these rows have {first_line}")
            if path.stat().st_size <= _REWRITE_LIMIT:
                write_whole(path, path.read_bytes() + data)
            else:
                append_whole(path, data)
        self._headers = {name: first_line} if self.step_count_per_record == 1 else {**self._headers, name: first_line}

    def close(self) -> None:
        """Flush, and report what could not be written."""
        self.flush()
        self.losses.report()

    def __enter__(self) -> CsvWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def mend(path: Path, first_line: str) -> None:
    """Make a file of an earlier process ready for more rows: same columns, and no line that a kill cut short."""
    with path.open("rb") as file:
        found = file.readline().decode("utf-8-sig", "replace").rstrip("\r\n")
        if found != first_line:
            raise ValueError(f"the file has the columns {found}, these rows have {first_line}: use a new run directory")
        size = file.seek(0, os.SEEK_END)
        end = size
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            block = file.read(end - start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end == size:
            return
        file.seek(0)
        whole = file.read(end)
    with replacing(path) as fd:
        os.write(fd, whole)
