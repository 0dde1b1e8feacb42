"""Tables to TensorBoard, without torch and without tensorflow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msmon_io.cells import utf8
from msmon_io.event_file import EventFile, event_file_name
from msmon_io.files import PathLike
from msmon_io.heat_map import heat_map
from msmon_io.losses import Losses
from msmon_io.table import Table

# Steps that a heat map shows; older ones scroll out.
_HEAT_MAP_STEPS = 256


class TensorBoardWriter:
    """Writes tables as scalars into one event file in the run directory.

    Tags are those of `msmon_io.tag` with `_{op}` after them. Text columns have no scalars. What cannot be written is
    logged once, counted in `losses` and reported by `close`; nothing is raised for it.

    Raises:
        ImportError: tensorboard is not installed; the message says how to install it.
    """

    def __init__(self, run_dir: PathLike, *, rank: int = 0) -> None:
        self.run_dir = Path(os.path.realpath(run_dir))
        self.rank = rank
        self.losses = Losses(part="tensorboard")
        self._file = EventFile(self.run_dir / event_file_name(), root=self.run_dir)
        self._rows = 0
        self._step: int | None = None
        self._heat_maps: dict[str, deque[Sequence[float]]] = {}

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""
        if self._step != table.step:
            self.flush()
            self._step = table.step
        suffixes = [f"_{op}" for op in table.number_ops]
        try:
            scalars = (
                (tag + suffix, value)
                for tag, row in zip(map(utf8, table.tags(self.rank)), table.rows(), strict=True)
                for suffix, value in zip(suffixes, row, strict=True)
            )
            self._file.add_scalars(table.step, scalars)
        except (TypeError, ValueError) as error:
            self.losses.add(len(table), error, f"{table.data_type} of step {table.step}")
        else:
            self._rows += len(table)

    def add_heat_map(self, step: int, *, tag: str, kind: str, counts: Sequence[float]) -> None:
        """Show a histogram as the newest column of a picture, `{tag}/rank{r}/{kind}`.

        Args:
            step: the step that the histogram is of.
            tag: `{vpp_stage}:{name}`.
            kind: `adam_update`, `adam_ratio`.
            counts: how many elements lie in each bin, the smallest bin first; always the same number of bins.
        """
        name = utf8(f"{tag}/rank{self.rank}/{kind}")
        columns = self._heat_maps.setdefault(name, deque(maxlen=_HEAT_MAP_STEPS))
        if columns and len(columns[0]) != len(counts):
            columns.clear()
        columns.append(counts)
        png, width, height = heat_map(columns)
        self._file.add_image(step, name, png, width=width, height=height)
        self._rows += 1

    def flush(self) -> None:
        """Bring the step to the disk."""
        rows, self._rows = self._rows, 0
        try:
            self._file.flush()
        except OSError as error:
            self.losses.add(rows, error, str(self._file.path))

    def close(self) -> None:
        """Flush, and report what could not be written."""
        self.flush()
        self.losses.report()

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
