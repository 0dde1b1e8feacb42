"""Stored partials as files with rows, for ranks that left no others: runs whose format is TensorBoard, say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from msmon.partials import Partials, PartialsReader
from msmon.reading.row_files import KEYS, Note, RowFile
from msmon_stats import OPS, finalize


def open_partials(run_dir: Path, note: Note) -> PartialsReader | None:
    """What a rank stored; None: nothing, or it is damaged, which `note` is told."""
    try:
        reader = PartialsReader(run_dir)
    except ValueError as error:
        note(f"{error}; what other files have is read")
        return None
    return reader if reader.steps else None


def read_partials(reader: PartialsReader, step: int, note: Note) -> Partials | None:
    """The partials of a step; None: there are none, or they are damaged, which `note` is told."""
    try:
        return reader.read(step)
    except ValueError as error:
        note(f"{error}; what other files have is read")
        return None


def partials_files(reader: PartialsReader, note: Note) -> dict[str, list[RowFile]]:
    """The stored partials by data type: one file a step."""
    found: dict[str, list[RowFile]] = {}
    for step in reader.steps:
        stored = read_partials(reader, step, note)
        for data_type in dict.fromkeys(stored.tensors.data_type) if stored else ():
            read = partial(_read, reader, step, data_type)
            file = RowFile(first_step=step, last_step=step, columns=(*KEYS, "dtype", *OPS), read=read)
            found.setdefault(data_type, []).append(file)
    return found


def _read(reader: PartialsReader, step: int, data_type: str, columns: list[str], note: Note) -> Any:
    stored = read_partials(reader, step, note)
    if stored is None:
        return pa.table({})
    rows, keys = key_columns(stored, data_type)
    dtypes = [stored.tensors.dtype[row] for row in rows]
    statistics = dict(zip(OPS, finalize(stored.matrix[rows], OPS).T, strict=True))
    made = {**keys, "step": [step] * len(rows), "dtype": dtypes, **statistics}
    return pa.table({name: made[name] for name in columns})


def key_columns(stored: Partials, data_type: str) -> tuple[list[int], dict[str, Any]]:
    """The rows of a data type, and which tensors they are about, as `RowFile.load` gives it."""
    of = stored.tensors
    rows = [row for row, own in enumerate(of.data_type) if own == data_type]
    return rows, {
        "vpp_stage": pa.array([of.vpp_stage[row] for row in rows], pa.int64()),
        "name": pa.array([of.name[row] for row in rows], pa.string()).dictionary_encode(),
        "micro_step": pa.array([of.micro_step[row] for row in rows], pa.int64()),
    }
