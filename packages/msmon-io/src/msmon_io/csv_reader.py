"""CSV files back to tables, one broken line at a time."""

from __future__ import annotations

import csv
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from attrs import frozen

from msmon_io.cells import decode_cell, utf8
from msmon_io.files import PathLike
from msmon_io.second_form import COLUMNS, NO_STAGE, PLACES, data_types_in, first_name
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

    second_form: bool = False
    """The file has other leading columns, which are brought into the form of ours."""
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
    def file_columns(self) -> list[str]:
        """All columns of the file, in order."""
        leading = COLUMNS if self.second_form else _LEADING
        return [*leading, *(["micro_step"] if self.has_micro_step else []), *self.ops]

    def columns(self, data_type: str | None) -> list[str]:
        """All columns of the rows of a data type, in order."""
        place = PLACES.get(data_type or "") if self.second_form else None
        numbered = self.has_micro_step if place is None else place.numbers_micro_steps
        return [*_LEADING, *(["micro_step"] if numbered else []), *self.ops]


def parse_header(line: str) -> Header:
    """The columns that a header line names.

    Raises:
        ValueError: it is no header of ours.
    """
    cells = [utf8(decode_cell(cell)) for cell in split_line(line)]
    second_form = cells[: len(COLUMNS)] == [*COLUMNS]
    leading = [*COLUMNS] if second_form else _LEADING
    has_micro_step = cells[len(leading) :][:1] == ["micro_step"]
    ops = cells[len(leading) + has_micro_step :]
    known = [*leading, "micro_step", *ops]
    if cells[: len(leading)] != leading or len(set(known)) != len(known):
        raise ValueError(f"the header is {line!r}, not vpp_stage,name,step[,micro_step],<statistics>")
    return Header(second_form=second_form, has_micro_step=has_micro_step, ops=ops)


def data_type_of(path: PathLike) -> str | None:
    """The data type of a file named `<data type>_<first>-<last>.csv`, else None.

    >>> data_type_of("run/grad_reduced_0-4.csv"), data_type_of("stack_info.csv")
    ('grad_reduced', None)
    """
    stem, _, steps = Path(path).stem.rpartition("_")
    first, dash, last = steps.partition("-")
    return stem if stem and dash and first.isdecimal() and last.isdecimal() and Path(path).suffix == ".csv" else None


def data_types_of(path: PathLike) -> Sequence[str]:
    """The data types whose rows a file may have by its name, which may be one of the second form."""
    own = data_type_of(path)
    return data_types_in(path) if own is None else [own]


def steps_of(path: PathLike) -> tuple[int, int]:
    """The first and the last step that a file named `<data type>_<first>-<last>.csv` covers."""
    first, _, last = Path(path).stem.rpartition("_")[2].removeprefix("step").partition("-")
    return int(first), int(last)


Row = tuple[int, str, int, int, list[float], list[str]]
"""vpp_stage, name, step, micro-step (0 where there is none), numbers, texts."""


def read_rows(
    path: PathLike, data_type: str | None = None, *, on_broken: Callable[[BrokenLine], None] = warn_broken
) -> tuple[Header, Iterator[Row]]:
    """The columns and the rows of one file; as `read_csv`, for those who need no tables.

    Args:
        data_type: whose rows are wanted, if the file is of the second form.

    Raises:
        HeaderError: a ValueError; the first line is no header of ours.
        OSError: the file cannot be read.
    """
    path = Path(path)
    header = read_header(path)
    return header, _rows(path, header, data_type, on_broken)


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


def _rows(path: Path, header: Header, data_type: str | None, on_broken: Callable[[BrokenLine], None]) -> Iterator[Row]:
    width = len(header.file_columns)
    leading_cells = _FirstForm(header) if not header.second_form else _SecondForm(data_type or "", header)
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
                found = leading_cells(cells)
                if found is None:
                    continue
                stage, name, step, micro_step = found
                numbers, texts = (cells[leading:], []) if not any(is_text) else _part(cells[leading:], is_text)
                # No format that rows go to has more bits.
                if not (-_BITS_31 <= stage < _BITS_31 and -_BITS_31 <= micro_step < _BITS_31):
                    raise ValueError("vpp_stage or micro_step has more than 32 bits")
                if not -_BITS_63 <= step < _BITS_63:
                    raise ValueError("step has more than 64 bits")
                row = (stage, name, step, micro_step, _floats(numbers), texts)
            except ValueError as error:
                on_broken(BrokenLine(path=path, line=number, reason=str(error)))
            else:
                yield row


class _FirstForm:
    """The leading cells of a row: stage, name, step, micro-step."""

    def __init__(self, header: Header) -> None:
        self._has_micro_step = header.has_micro_step

    def __call__(self, cells: list[str]) -> tuple[int, str, int, int]:
        return int(cells[0]), decode_cell(cells[1]), int(cells[2]), int(cells[3]) if self._has_micro_step else 0


class _SecondForm:
    """The same in the second form; None: the row is of another data type."""

    def __init__(self, data_type: str, header: Header) -> None:
        self._data_type = data_type
        self._place = PLACES[data_type]
        self._has_micro_step = header.has_micro_step
        self._step = -1
        self._calls: Counter[tuple[int, str]] = Counter()

    def __call__(self, cells: list[str]) -> tuple[int, str, int, int] | None:
        if cells[3] != self._place.scope:
            return None
        stage, step, name = int(cells[0]), int(cells[1]), first_name(self._data_type, decode_cell(cells[2]))
        stage = 0 if stage == NO_STAGE else stage
        micro_step = 0
        if self._has_micro_step:
            micro_step = int(cells[4]) if self._place.numbers_micro_steps else 0
        elif self._place.numbers_micro_steps:
            # Rows of micro-steps have no number; they follow each other.
            if step != self._step:
                self._step, self._calls = step, Counter()
            micro_step = self._calls[stage, name]
            self._calls[stage, name] += 1
        return stage, name, step, micro_step


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

    A file of the second form has several data types, which come one after the other.

    Args:
        path: a file that `CsvWriter` or the older tool wrote.
        on_broken: is called for each line that cannot be read; such lines are passed over. So is a last line
            without a line end, since a killed process may have left half a number there.

    Raises:
        HeaderError: a ValueError; the first line is no header of ours.
        OSError: the file cannot be read.
    """
    said: set[BrokenLine] = set()

    def once(broken: BrokenLine) -> None:
        if broken not in said:
            said.add(broken)
            on_broken(broken)

    for data_type in data_types_of(path) or [Path(path).stem]:
        header, rows = read_rows(path, data_type, on_broken=once)
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
        micro_steps=micro_steps if "micro_step" in header.columns(data_type) else None,
        ops=header.ops,
        values=numbers,
        text={op: [row[i] for row in texts] for i, op in enumerate(text_ops)},
    )
