"""CSV files back to tables, one broken line at a time."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen

from msmon_io._cells import decode_cell
from msmon_io._files import PathLike
from msmon_io._table import TEXT_OPS, Table

logger = logging.getLogger("msmon_io")

_LEADING = ["vpp_stage", "name", "step"]


@frozen(kw_only=True)
class BrokenLine:
    """A line that could not be read; it was passed over."""

    path: Path
    line: int
    """Counted from 1, the header is line 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}; the line is passed over"


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
    text: list[bool]
    """For each of ``ops``: is it text?"""

    @property
    def leading(self) -> int:
        """The number of columns before the first of ``ops``."""
        return 4 if self.has_micro_step else 3


def parse_header(line: str) -> Header:
    """The columns that a header line names.

    Raises:
        ValueError: it is no header of ours.
    """
    cells = split_line(line)
    if cells[:3] != _LEADING or len(set(cells)) != len(cells):
        raise ValueError(f"the header is {line!r}, not vpp_stage,name,step[,micro_step],<statistics>")
    has_micro_step = cells[3:4] == ["micro_step"]
    ops = [decode_cell(cell) for cell in cells[4 if has_micro_step else 3 :]]
    return Header(has_micro_step=has_micro_step, ops=ops, text=[op in TEXT_OPS for op in ops])


def data_type_of(path: PathLike) -> str | None:
    """The data type of a file named ``<data type>_<first>-<last>.csv``, else None.

    >>> data_type_of("run/grad_reduced_0-4.csv"), data_type_of("stack_info.csv")
    ('grad_reduced', None)
    """
    stem, _, steps = Path(path).stem.rpartition("_")
    first, dash, last = steps.partition("-")
    return stem if stem and dash and first.isdecimal() and last.isdecimal() and Path(path).suffix == ".csv" else None


def read_csv(path: PathLike, *, on_broken: Callable[[BrokenLine], None] = warn_broken) -> Iterator[Table]:
    """The tables of one file, in its order: one for each run of rows of the same step. Memory: one table.

    Args:
        path: a file that :class:`CsvWriter` or the older tool wrote.
        on_broken: is called for each line that cannot be read; such lines are passed over. So is a last line
            without a line end, since a killed process may have left half a number there.

    Raises:
        ValueError: the first line is no header of ours.
        OSError: the file cannot be read.
    """
    path = Path(path)
    data_type = data_type_of(path) or path.stem
    with path.open(encoding="utf-8-sig", errors="backslashreplace", newline="\n") as file:
        first = file.readline()
        if not first.endswith("\n"):
            raise ValueError(f"{path}: no complete header line")
        try:
            header = parse_header(first.rstrip("\r\n"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        rows: list[_Row] = []
        for number, line in enumerate(file, 2):
            try:
                row = _parse(line, header)
            except ValueError as error:
                on_broken(BrokenLine(path=path, line=number, reason=str(error)))
                continue
            if row is None:
                continue
            if rows and rows[-1].step != row.step:
                yield _table(data_type, header, rows)
                rows = []
            rows.append(row)
        if rows:
            yield _table(data_type, header, rows)


@frozen
class _Row:
    stage: int
    name: str
    step: int
    micro_step: int
    numbers: list[float]
    texts: list[str]


def _parse(line: str, header: Header) -> _Row | None:
    if not line.endswith("\n"):
        raise ValueError("the last line has no line end: it was cut short")
    line = line.rstrip("\r\n")
    if not line:
        return None
    cells = split_line(line)
    width = header.leading + len(header.ops)
    if len(cells) != width:
        raise ValueError(f"{len(cells)} cells instead of {width}")
    numbers: list[float] = []
    texts: list[str] = []
    for cell, is_text in zip(cells[header.leading :], header.text, strict=True):
        if is_text:
            texts.append(decode_cell(cell))
        else:
            numbers.append(float(cell))
    micro_step = int(cells[3]) if header.has_micro_step else 0
    return _Row(int(cells[0]), decode_cell(cells[1]), int(cells[2]), micro_step, numbers, texts)


def _table(data_type: str, header: Header, rows: list[_Row]) -> Table:
    text_ops = [op for op, is_text in zip(header.ops, header.text, strict=True) if is_text]
    return Table(
        data_type=data_type,
        step=rows[0].step,
        names=[row.name for row in rows],
        vpp_stages=[row.stage for row in rows],
        micro_steps=[row.micro_step for row in rows] if header.has_micro_step else None,
        ops=header.ops,
        values=[row.numbers for row in rows],
        text={op: [row.texts[i] for row in rows] for i, op in enumerate(text_ops)},
    )
