"""A table as the lines of a CSV file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING

from msmon_io.cells import encode_cell, encode_new_cell
from msmon_io.numbers import COUNT_OPS, MAX_BULK_DIGITS, format_column
from msmon_io.table import FINGERPRINT, Table

if TYPE_CHECKING:
    from msmon_io.row_starts import RowStarts


def header(table: Table) -> str:
    """The first line of the table's file, without the line end."""
    micro = ["micro_step"] if table.micro_steps is not None else []
    return ",".join(["vpp_stage", "name", "step", *micro, *map(encode_cell, table.ops)])


def csv_lines(table: Table, ndigits: int, known_starts: MutableMapping[str, RowStarts]) -> bytes:
    """The table's rows as CSV lines, each with its line end, without the header.

    Args:
        known_starts: what the rows of each data type began with; kept up to date here.
    """
    number_ops = table.number_ops
    values = table.array()
    if not number_ops or ndigits > MAX_BULK_DIGITS or values is None:
        columns = zip(*table.rows(), strict=True)
        return _lines(table, [format_column(*column, ndigits) for column in zip(columns, number_ops, strict=True)])
    from msmon_io.bulk_numbers import number_rows
    from msmon_io.row_starts import RowStarts

    is_count = [op in COUNT_OPS for op in number_ops]
    starts = None if table.text else RowStarts.of(table, known_starts)
    if starts is not None:
        return b"".join(number_rows(values, is_count, ndigits, starts.leading(table.step)))
    rows = b"".join(number_rows(values, is_count, ndigits)).decode("ascii").split("\n")[:-1]
    return _lines(table, list(zip(*[row.split(",") for row in rows], strict=True)))


def text_cells(table: Table) -> dict[str, list[str]]:
    """The cells of the text columns."""
    encode = {FINGERPRINT: encode_new_cell}
    return {op: list(map(encode.get(op, encode_cell), texts)) for op, texts in table.text.items()}


def _lines(table: Table, numbers: Sequence[Sequence[str]]) -> bytes:
    cells: dict[str, Iterable[str]] = dict(zip(table.number_ops, numbers, strict=True))
    cells |= text_cells(table)
    columns: list[Iterable[object]] = [table.vpp_stages, map(encode_cell, table.names)]
    columns.append(itertools.repeat(table.step, len(table)))
    if table.micro_steps is not None:
        columns.append(table.micro_steps)
    columns += [cells[op] for op in table.ops]
    line = ",".join(["%s"] * len(columns)) + "\n"
    return "".join([line % row for row in zip(*columns, strict=True)]).encode()
