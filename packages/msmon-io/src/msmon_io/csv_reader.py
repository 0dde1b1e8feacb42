"""CSV files back to tables, one broken line at a time."""

from __future__ import annotations

import csv
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from attrs import frozen

from msmon_io.cells import decode_cell, utf8
from msmon_io.files import PathLike
from msmon_io.table import TEXT_OPS, Table

logger = logging.getLogger("msmon_io")

_LEADING = ["vpp_stage", "name", "step"]
_BITS_31, _BITS_63 = 1 << 31, 1 << 63


@frozen(kw_only=True)
class BrokenLine:
    """A line that could not be read; it was passed over."""

    path: Path
    line: int
    """Counted from 1, the header is line 1. A broken header means that the file is passed over."""
    reason: str

    def __str__(self) -> str:
        what = "file" if self.line == 1 else "line"
        return f"{self.path}:{self.line}: {self.reason}; the {what} is passed over"


class HeaderError(ValueError):
    """The first line of a file is no header of ours."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.broken = BrokenLine(path=path, line=1, reason=reason)


def warn_broken(broken: BrokenLine) -> None:
    """The default for broken lines: one warning each."""
    logger.warning("%s", broken)


def split_line(line: str) -> list[str]:
    """The cells of one line (a record never spans lines: the writer escapes line ends).

    Raises:
        ValueError: the quotation marks are wrong.
    """
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration) as error:
        raise ValueError(str(error)) from None


@frozen(kw_only=True)
class Header:
    """The columns of a file."""

    has_micro_step: bool
    ops: list[str]

    @property
    def text(self) -> list[bool]:
        """For each of `ops`: is it text?"""
        return [op in TEXT_OPS for op in self.ops]

    @property
    def number_ops(self) -> list[str]:
        """Those of `ops` that are numbers."""
        return [op for op in self.ops if op not in TEXT_OPS]

    @property
    def columns(self) -> list[str]:
        """All columns, in order."""
        return [*_LEADING, *(["micro_step"] if self.has_micro_step else []), *self.ops]


def parse_header(line: str) -> Header:
    """The columns that a header line names.

    Raises:
        ValueError: it is no header of ours.
    """
    cells = [utf8(decode_cell(cell)) for cell in split_line(line)]
    has_micro_step = cells[3:4] == ["micro_step"]
    ops = cells[4 if has_micro_step else 3 :]
    known = [*_LEADING, "micro_step", *ops]
    if cells[:3] != _LEADING or len(set(known)) != len(known):
        raise ValueError(f"the header is {line!r}, not vpp_stage,name,step[,micro_step],<statistics>")
    return Header(has_micro_step=has_micro_step, ops=ops)


def data_type_of(path: PathLike) -> str | None:
    """The data type of a file named `<data type>_<first>-<last>.csv`, else None.

    >>> data_type_of("run/grad_reduced_0-4.csv"), data_type_of("stack_info.csv")
    ('grad_reduced', None)
    """
    stem, _, steps = Path(path).stem.rpartition("_")
    first, dash, last = steps.partition("-")
    return stem if stem and dash and first.isdecimal() and last.isdecimal() and Path(path).suffix == ".csv" else None


def steps_of(path: PathLike) -> tuple[int, int]:
    """The first and the last step that a file named `<data type>_<first>-<last>.csv` covers."""
    first, _, last = Path(path).stem.rpartition("_")[2].partition("-")
    return int(first), int(last)


Row = tuple[int, str, int, int, list[float], list[str]]
"""vpp_stage, name, step, micro-step (0 where there is none), numbers, texts."""


def read_rows(path: PathLike, *, on_broken: Callable[[BrokenLine], None] = warn_broken) -> tuple[Header, Iterator[Row]]:
    """The columns and the rows of one file; as `read_csv`, for those who need no tables.

    Raises:
        HeaderError: a ValueError; the first line is no header of ours.
        OSError: the file cannot be read.
    """
    path = Path(path)
    header = read_header(path)
    return header, _rows(path, header, on_broken)


def read_header(path: PathLike) -> Header:
    """The columns of one file.

    Raises:
        HeaderError: a ValueError; the first line is no header of ours.
        OSError: the file cannot be read.
    """
    with _open(path) as file:
        first = file.readline()
    try:
        if not first.endswith("\n"):
            raise ValueError("no complete header line")
        return parse_header(first.rstrip("\r\n"))
    except ValueError as error:
        raise HeaderError(Path(path), str(error)) from None


def _open(path: PathLike) -> TextIO:
    return open(path, encoding="utf-8-sig", errors="backslashreplace", newline="\n")


def _rows(path: Path, header: Header, on_broken: Callable[[BrokenLine], None]) -> Iterator[Row]:
    width = len(header.columns)
    leading = width - len(header.ops)
    is_text = header.text
    with _open(path) as file:
        file.readline()
        for number, line in enumerate(file, 2):
            try:
                if line[-1] != "\n":
                    raise ValueError("the last line has no line end: it was cut short")
                line = line.rstrip("\r\n")
                if not line:
                    continue
                cells = split_line(line)
                if len(cells) != width:
                    raise ValueError(f"{len(cells)} cells instead of {width}")
                numbers, texts = (cells[leading:], []) if not any(is_text) else _part(cells[leading:], is_text)
                stage, step, micro_step = int(cells[0]), int(cells[2]), int(cells[3]) if header.has_micro_step else 0
                # No format that rows go to has more bits.
                if not (-_BITS_31 <= stage < _BITS_31 and -_BITS_31 <= micro_step < _BITS_31):
                    raise ValueError("vpp_stage or micro_step has more than 32 bits")
                if not -_BITS_63 <= step < _BITS_63:
                    raise ValueError("step has more than 64 bits")
                row = (stage, decode_cell(cells[1]), step, micro_step, _floats(numbers), texts)
            except ValueError as error:
                on_broken(BrokenLine(path=path, line=number, reason=str(error)))
            else:
                yield row


def _part(cells: list[str], is_text: list[bool]) -> tuple[list[str], list[str]]:
    numbers = [cell for cell, text in zip(cells, is_text, strict=True) if not text]
    return numbers, [decode_cell(cell) for cell, text in zip(cells, is_text, strict=True) if text]


def _floats(cells: list[str]) -> list[float]:
    try:
        return list(map(float, cells))
    except ValueError:
        # pandas leaves the cell of a missing number empty.
        return [float(cell or "nan") for cell in cells]


def read_csv(path: PathLike, *, on_broken: Callable[[BrokenLine], None] = warn_broken) -> Iterator[Table]:
    """The tables of one file, in its order: one for each run of rows of the same step. Memory: one table.

    Args:
        path: a file that `CsvWriter` or the older tool wrote.
        on_broken: is called for each line that cannot be read; such lines are passed over. So is a last line
            without a line end, since a killed process may have left half a number there.

    Raises:
        HeaderError: a ValueError; the first line is no header of ours.
        OSError: the file cannot be read.
    """
    data_type = data_type_of(path) or Path(path).stem
    header, rows = read_rows(path, on_broken=on_broken)
    for _, group in itertools.groupby(rows, key=lambda row: row[2]):
        yield _table(data_type, header, list(group))


def _table(data_type: str, header: Header, rows: list[Row]) -> Table:
    text_ops = [op for op in header.ops if op in TEXT_OPS]
    stages, names, steps, micro_steps, numbers, texts = zip(*rows, strict=True)
    return Table(
        data_type=data_type,
        step=steps[0],
        names=names,
        vpp_stages=stages,
        micro_steps=micro_steps if header.has_micro_step else None,
        ops=header.ops,
        values=numbers,
        text={op: [row[i] for row in texts] for i, op in enumerate(text_ops)},
    )
