"""Tables to TensorBoard, without torch and without tensorflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msmon_io.cells import utf8
from msmon_io.event_file import EventFile, event_file_name
from msmon_io.files import PathLike
from msmon_io.heat_map import HeatMap, HeatMaps, shades
from msmon_io.losses import Losses
from msmon_io.scalar_events import ScalarEvents
from msmon_io.table import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
        self._scalars: dict[str, ScalarEvents] = {}
        self._heat_maps = HeatMaps()

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""
        if self._step != table.step:
            self.flush()
            self._step = table.step
        try:
            self._file.add_events(ScalarEvents.of(table, self.rank, self._scalars).fill(table))
        except (TypeError, ValueError) as error:
            self.losses.add(len(table), error, f"{table.data_type} of step {table.step}")
        else:
            self._rows += len(table)

    def add_heat_maps(self, table: Table, counts: NDArray[np.float64]) -> None:
        """Add histograms as the newest columns of pictures, which are called like the table's rows.

        A picture is drawn when a quarter of it is new and a small share of the time allows it, and by `close`. What a
        killed process had not drawn is missing.

        Args:
            table: step, data type (`adam_update`) and names.
            counts: `[rows, bins]`, how many elements lie in each bin, the smallest bin first; always the same number of
                bins.
        """
        for name, column in zip(map(utf8, table.tags(self.rank)), shades(counts), strict=True):
            self._heat_maps.add(name, table.step, column.tobytes())

    def _draw(self, heat_maps: Iterator[tuple[str, HeatMap]]) -> None:
        for name, heat_map in heat_maps:
            png, width, height = heat_map.draw()
            self._file.add_image(heat_map.step, name, png, width=width, height=height)
            self._rows += 1

    def flush(self) -> None:
        """Bring the step to the disk."""
        self._draw(self._heat_maps.due())
        self._write_file()

    def _write_file(self) -> None:
        rows, self._rows = self._rows, 0
        try:
            self._file.flush()
        except OSError as error:
            self.losses.add(rows, error, str(self._file.path))

    def close(self) -> None:
        """Draw what is in no picture yet, flush, and report what could not be written."""
        self._draw(self._heat_maps.unseen())
        self._write_file()
        self.losses.report()

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
