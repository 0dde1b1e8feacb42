"""Stored partials as files with rows, for ranks that left no others: runs whose format is TensorBoard, say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from msmon.partials import Partials, read_partials
from msmon.reading.row_files import KEYS, Note, unsaid
from msmon_stats import OPS, finalize


def read_stored(directory: Path, step: int, note: Note = unsaid) -> Partials | None:
    """The stored partials of a step; None: there are none, or they are damaged, which `note` is told."""
    try:
        return read_partials(directory, step)
    except ValueError as error:
        note(str(error))
        return None


def partials_files(directory: Path, steps: Sequence[int], notes: list[str]) -> dict[str, list[PartialsFile]]:
    """The stored partials of a run directory by data type."""
    found: dict[str, list[PartialsFile]] = {}
    for step in steps:
        stored = read_stored(directory, step, notes.append)
        for data_type in dict.fromkeys(stored.data_types) if stored else ():
            found.setdefault(data_type, []).append(PartialsFile(directory=directory, step=step, data_type=data_type))
    return found


@attrs.frozen(kw_only=True)
class PartialsFile:
    """The stored partials of one step and data type."""

    directory: Path
    step: int
    data_type: str
    columns: tuple[str, ...] = (*KEYS, "dtype", *OPS)

    @property
    def first_step(self) -> int:
        return self.step

    @property
    def last_step(self) -> int:
        return self.step

    def load(self, columns: Sequence[str], note: Note = unsaid) -> Any:
        stored = read_stored(self.directory, self.step, note)
        if stored is None:
            return pa.table({})
        rows = [row for row, data_type in enumerate(stored.data_types) if data_type == self.data_type]
        made: dict[str, Any] = {
            "vpp_stage": [stored.vpp_stages[row] for row in rows],
            "name": pa.array([stored.names[row] for row in rows], pa.string()).dictionary_encode(),
            "step": [self.step] * len(rows),
            "micro_step": [stored.micro_steps[row] for row in rows],
            "dtype": [stored.dtypes[row] for row in rows],
            **dict(zip(OPS, finalize(stored.matrix[rows], OPS).T, strict=True)),
        }
        return pa.table({name: values for name, values in made.items() if name in columns})
