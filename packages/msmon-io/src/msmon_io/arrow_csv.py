"""CSV files to Arrow columns by Arrow's own reader: the quick way for files without a fault."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from msmon_io.cells import decode_cell, utf8
from msmon_io.csv_reader import parse_header
from msmon_io.files import PathLike
from msmon_io.numbers import COUNT_OPS


def read_arrow(path: PathLike, run: str) -> pa.Table | None:
    """The file with the columns that `msmon_io.parquet_writer.to_arrow` makes.

    Returns:
        None if anything about the file is unusual; then `read_csv` must look at it line by line.

    Raises:
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    first_line, newline, _ = data.partition(b"\n")
    if not newline or not data.endswith(b"\n"):
        return None
    try:
        header = parse_header(first_line.decode("utf-8-sig").rstrip("\r"))
        is_text = dict(zip(header.ops, header.text, strict=True))
        leading = ["vpp_stage", "name", "step", *(["micro_step"] if header.has_micro_step else [])]
        types = {"vpp_stage": pa.int32(), "name": pa.string(), "step": pa.int64(), "micro_step": pa.int32()}
        types |= {op: pa.string() if text else pa.float64() for op, text in is_text.items()}
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(column_names=[*leading, *header.ops], skip_rows=1, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=False),
            convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
        )
    except (ValueError, pa.ArrowException):
        return None
    rows = table.num_rows
    # Cells are only ever escaped with these.
    is_plain = b"\\" not in data and b"'" not in data
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "run": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [run]),
        "vpp_stage": table["vpp_stage"],
        "name": _texts(table["name"], is_plain),
        "step": table["step"],
        "micro_step": table["micro_step"] if header.has_micro_step else pa.nulls(rows, pa.int32()),
    }
    for op, text in is_text.items():
        column = table[op]
        if text:
            columns[op] = _texts(column, is_plain)
        elif op in COUNT_OPS:
            columns[op] = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
        else:
            columns[op] = pc.fill_null(column, float("nan"))
    return pa.table(columns).combine_chunks()


def _texts(column: pa.ChunkedArray, is_plain: bool) -> pa.DictionaryArray:
    encoded = column.combine_chunks().dictionary_encode()
    if is_plain:
        return encoded
    texts = pa.array([utf8(decode_cell(text)) for text in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, texts)
