"""Tables to CSV files, `<data type>_<first step>-<last step>.csv`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msmon_io.cells import encode_cell
from msmon_io.csv_lines import csv_lines, header
from msmon_io.files import PathLike, append_whole, inside, write_whole
from msmon_io.losses import Losses
from msmon_io.table import Table

if TYPE_CHECKING:
    from msmon_io.row_starts import RowStarts

# While it is this small, a file that grows is written anew beside the old one and takes its place, so that even
# `kill -9` in the middle leaves whole lines. Beyond it that would cost a shared disk more than it is worth: lines are
# appended, and a line cut by a kill is passed over by the reader and removed by the next writer.
REWRITE_LIMIT = 4 << 20
_REWRITE_STEPS = 16

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


class CsvWriter:
    """Writes tables as CSV files in one run directory.

    Rows are gathered until the step is over (`flush`, or the first table of another step) and then reach the
    disk at once. What cannot be written is logged once, counted in `losses` and reported by `close`;
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
        # Links are followed once, here: a link put in the directory's place later leads outside of it.
        self.run_dir = Path(os.path.realpath(run_dir))
        self.ndigits = ndigits
        self.step_count_per_record = step_count_per_record
        self.losses = Losses(part="csv")
        self._step: int | None = None
        self._pending: dict[str, list[tuple[str, bytes, int]]] = {}
        self._headers: dict[str, str] = {}
        self._row_starts: dict[str, RowStarts] = {}

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""
        self._enter(table.step)
        if not len(table):
            return
        try:
            name = record_name(table.data_type, table.step, self.step_count_per_record)
            rows = (header(table), csv_lines(table, self.ndigits, self._row_starts), len(table))
        except (ValueError, TypeError) as error:
            self.losses.add(len(table), error, f"{table.data_type} of step {table.step}")
        else:
            self._pending.setdefault(name, []).append(rows)

    def _enter(self, step: int) -> None:
        """Rows of this step follow: those of another one go to the disk."""
        if self._step != step:
            self.flush()
            if self._step is not None and not self._same_record(self._step, step):
                self._headers = {}
            self._step = step

    def flush(self) -> None:
        """Bring the rows of the step to the disk."""
        pending, self._pending = self._pending, {}
        for name, parts in pending.items():
            try:
                first_line = parts[0][0]
                if any(part[0] != first_line for part in parts):
                    raise ValueError("the tables of one step have different columns")
                self._commit(name, first_line, b"".join([lines for _, lines, _ in parts]))
            except (OSError, ValueError) as error:
                self.losses.add(sum(rows for _, _, rows in parts), error, str(self.run_dir / name))

    def _same_record(self, step: int, other: int) -> bool:
        return step // self.step_count_per_record == other // self.step_count_per_record

    def _commit(self, name: str, first_line: str, data: bytes) -> None:
        path = inside(self.run_dir / name, self.run_dir)
        known = self._headers.get(name)
        if known is None and path.exists():
            known = mend(path)
        if known is None:
            write_whole(path, first_line.encode() + b"\n", data)
        elif known != first_line:
            raise ValueError(f"the file has the columns {known}, these rows have {first_line}: use a new run directory")
        elif path.stat().st_size <= min(REWRITE_LIMIT, _REWRITE_STEPS * len(data)):
            write_whole(path, path.read_bytes(), data)
        else:
            append_whole(path, data)
        self._headers[name] = first_line

    def close(self) -> None:
        """Flush, and report what could not be written."""
        self.flush()
        self.losses.report()

    def __enter__(self) -> CsvWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_text_csv(
    path: PathLike, columns: Sequence[str], rows: Iterable[Sequence[str]], *, root: PathLike | None = None
) -> None:
    """Write a CSV file of texts, such as `stack_info.csv`, whole or not at all. Mode 0640.

    Cells are escaped as in all our CSV files: one line a row, whatever the texts hold.

    Args:
        columns: the header.
        root: a directory that the file must not leave; default: the one it lies in.

    Raises:
        OutsideError: the file is not inside `root`.
        OSError: it cannot be written; a file that was there is unharmed.
    """
    lines = [",".join(map(encode_cell, row)) for row in (columns, *rows)]
    path = Path(os.path.abspath(path))
    write_whole(
        inside(path, os.path.realpath(path.parent if root is None else root)), ("\n".join(lines) + "\n").encode()
    )


def mend(path: Path) -> str | None:
    """Make a file of an earlier process ready for more rows: remove a last line that a kill cut short.

    Returns:
        The header, without the line end; None if the file has not even that.
    """
    with path.open("rb") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.seek(0)
        first_line = file.readline() if end else b""
    if end < size:
        os.truncate(path, end)
    return first_line.decode("utf-8-sig", "replace").rstrip("\r\n") if first_line else None
