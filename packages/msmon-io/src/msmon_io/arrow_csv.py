"""CSV files as Arrow tables: by Arrow's own reader where every line is whole, else line by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msmon_io.cells import decode_cell, utf8
from msmon_io.csv_reader import BrokenLine, HeaderError, parse_header, read_rows, warn_broken
from msmon_io.files import PathLike
from msmon_io.second_form import NO_STAGE, PLACES, first_name

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as pa_csv
except ImportError as error:
    raise ImportError("Reading CSV files as Arrow tables needs pyarrow: pip install 'msmon-io[parquet]'") from error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SECOND = {"module_name": pa.string(), "scope": pa.string()}
_LEADING = {"vpp_stage": pa.int32(), "name": pa.string(), "step": pa.int64(), "micro_step": pa.int32()}
_BEFORE, _AFTER = (b",", b"\n"), (b",", b"\r", b"\n")
_NAN_CODE = re.compile(rb"nan\(", re.IGNORECASE)


def read_arrow(
    path: PathLike,
    data_type: str | None = None,
    *,
    on_broken: Callable[[BrokenLine], None] = warn_broken,
    use_threads: bool = True,
) -> pa.Table | None:
    """All rows of one file that `CsvWriter` or the older tool wrote: those of `read_csv`, with the same broken lines.

    Args:
        data_type: whose rows are wanted, if the file is of the second form.
        on_broken: is called for each line that cannot be read; such lines are passed over. A broken header is line 1.
        use_threads: let Arrow use all processors.

    Returns:
        The columns `vpp_stage` (int32), `name` (text), `step` (int64), `micro_step` (int32, if the file has it), then
        the statistics: float64, nan where a cell is empty, and text. Texts are dictionaries of what UTF-8 can hold.
        None: the header is broken.

    Raises:
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    found = None if _only_line_by_line(data) else _by_arrow(data, data_type, use_threads)
    if found is not None:
        return found
    try:
        header, rows = read_rows(path, data_type, on_broken=on_broken)
    except HeaderError as error:
        on_broken(error.broken)
        return None
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * 6
    numbers, texts = list(zip(*columns[4], strict=True)), list(zip(*columns[5], strict=True))
    leading = dict(zip(_LEADING, columns[:4], strict=True))
    made = {name: pa.array(map(utf8, v) if name == "name" else v, _LEADING[name]) for name, v in leading.items()}
    for op, is_text in zip(header.ops, header.text, strict=True):
        values = (texts if is_text else numbers).pop(0) if columns[0] else ()
        made[op] = pa.array(map(utf8, values), pa.string()) if is_text else pa.array(values, pa.float64())
    return _table(header.columns(data_type), made)


def _only_line_by_line(data: bytes) -> bool:
    """Whether there is something that Arrow takes for a number, a line end or a quotation mark, and `read_csv` not."""
    if not data.endswith(b"\n") or data.count(b"\r") != data.count(b"\r\n") or b"0x" in data or b"0X" in data:
        return True
    return (b'"' in data and not _is_quoted_well(data)) or (b"(" in data and _NAN_CODE.search(data) is not None)


def _is_quoted_well(data: bytes) -> bool:
    """Whether quotation marks are only around whole cells, and doubled inside of these."""
    first, *parts, last = data.split(b'"')
    inside, between = parts[::2], parts[1::2]
    if len(parts) % 2 == 0 or first[-1:] not in _BEFORE or last[:1] not in _AFTER:
        return False
    # Nothing between two of them: a doubled one.
    return all(not part or (part[:1] in _AFTER and part[-1:] in _BEFORE) for part in between) and not any(
        b"\n" in part for part in set(inside)
    )


def _by_arrow(data: bytes, data_type: str | None, use_threads: bool) -> pa.Table | None:
    """The whole file, or None where a line is broken."""
    try:
        header = parse_header(data[: data.index(b"\n")].decode("utf-8-sig").rstrip("\r"))
        texts = dict(zip(header.ops, header.text, strict=True))
        types = {**_LEADING, **_SECOND, **{op: pa.string() if text else pa.float64() for op, text in texts.items()}}
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(column_names=header.file_columns, skip_rows=1, use_threads=use_threads),
            # Without the list "nan" would be an empty cell.
            convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
        )
    except (ValueError, pa.ArrowException):
        return None
    if any(table[column].null_count for column in _LEADING if column in header.file_columns):
        return None  # an empty cell where a number must be
    if header.second_form:
        table = _of_data_type(table, data_type or "")
    wanted = header.columns(data_type)
    columns = {}
    for column in wanted:
        values = table[column].combine_chunks()
        is_number = pa.types.is_floating(values.type)
        columns[column] = pc.fill_null(values, float("nan")) if is_number and values.null_count else values
    # Cells are only ever escaped with these.
    return _table(wanted, columns, decode=b"\\" in data or b"'" in data)


def _of_data_type(table: pa.Table, data_type: str) -> pa.Table:
    """The rows of a data type from a file of the second form, with the leading columns of ours."""
    place = PLACES[data_type]
    table = table.filter(pc.equal(table["scope"], place.scope)).combine_chunks()
    names = table["module_name"].combine_chunks().dictionary_encode()
    firsts = pa.array([first_name(data_type, name) for name in names.dictionary.to_pylist()], pa.string())
    stages = pc.if_else(pc.equal(table["vpp_stage"], NO_STAGE), 0, table["vpp_stage"]).cast(pa.int32())
    columns = {**dict(zip(table.column_names, table.columns, strict=True)), "vpp_stage": stages}
    columns["name"] = pa.chunked_array([firsts.take(names.indices)])
    if place.numbers_micro_steps and "micro_step" not in columns:
        # Rows of micro-steps have no number; they follow each other.
        numbers = _occurrence(columns["step"].to_numpy(), names.indices.to_numpy(), stages.to_numpy())
        columns["micro_step"] = pa.chunked_array([pa.array(numbers, pa.int32())])
    return pa.table(columns)


def _occurrence(steps: NDArray[np.int64], *keys: NDArray[Any]) -> NDArray[np.int32]:
    """For each row, how many before it have the same keys since its step began (a resumed run begins one again)."""
    import numpy as np

    keys = (np.cumsum(np.diff(steps, prepend=steps[:1]) != 0), *keys)
    order = np.lexsort(keys)
    rows = len(order)
    differs = np.ones(rows, bool)
    differs[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.maximum.accumulate(np.where(differs, np.arange(rows), 0))
    found = np.empty(rows, np.int32)
    found[order] = np.arange(rows) - starts
    return found


def _table(names: Sequence[str], columns: Mapping[str, pa.Array], *, decode: bool = False) -> pa.Table:
    made = {}
    for name in names:
        column = columns[name]
        if pa.types.is_string(column.type):
            column = column.dictionary_encode()
            if decode:
                texts = pa.array([utf8(decode_cell(text)) for text in column.dictionary.to_pylist()], pa.string())
                column = pa.DictionaryArray.from_arrays(column.indices, texts)
        made[name] = column
    return pa.table(made)
