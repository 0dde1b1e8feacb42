"""Tables to CSV files of the second form."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msmon_io.cells import encode_cell
from msmon_io.csv_lines import text_cells
from msmon_io.csv_writer import CsvWriter
from msmon_io.files import PathLike
from msmon_io.numbers import format_column
from msmon_io.second_form import COLUMNS, NO_STAGE, PLACES, Place, second_name
from msmon_io.table import Table

logger = logging.getLogger("msmon_io")

_ORDER = {data_type: position for position, data_type in enumerate(PLACES)}


class SecondFormWriter(CsvWriter):
    """Writes tables as files of the second form into `rank_<r>`. Failures are treated as `CsvWriter` does.

    A file of an earlier training that has rows of the same or later steps is put aside under another name.

    Args:
        run_dir: the directory of this rank.
        ops: monitor to the columns of its files; data types of other monitors are left out.
        micro_steps: of a step, the number that gradient rows carry which are not of one micro-step.
        chunks: of the model.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with SecondFormWriter(folder, ops={"param": ["max"]}) as writer:
        ...     writer.write(Table(data_type="param_origin", step=0, names=["w"], vpp_stages=[0],
        ...                        ops=["norm", "max"], values=[[0.5, 0.1]]))
        >>> print((folder / "param_step0-0.csv").read_text(), end="")
        vpp_stage,step,module_name,scope,max
        -1,0,w,param_origin,0.1
    """

    def __init__(
        self,
        run_dir: PathLike,
        *,
        ops: Mapping[str, Sequence[str]],
        ndigits: int = 17,
        step_count_per_record: int = 1,
        micro_steps: int = 1,
        chunks: int = 1,
    ) -> None:
        super().__init__(run_dir, ndigits=ndigits, step_count_per_record=step_count_per_record)
        self._ops = ops
        self._micro_steps = micro_steps
        self._chunks = chunks
        self._rows: dict[str, list[tuple[tuple[int, int, int], str]]] = {}

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step."""
        self._enter(table.step)
        place = PLACES.get(table.data_type)
        if place is None or place.monitor not in self._ops or not len(table):
            return
        try:
            # Modules micro-step by micro-step, the rest by data type.
            micro_steps = table.micro_steps if place.monitor == "module" and table.micro_steps else [0] * len(table)
            position = _ORDER[table.data_type]
            self._rows.setdefault(place.monitor, []).extend(
                ((micro, position, number), line)
                for number, (micro, line) in enumerate(zip(micro_steps, self._lines(table, place), strict=True))
            )
        except (ValueError, TypeError) as error:
            self.losses.add(len(table), error, f"{table.data_type} of step {table.step}")

    def _lines(self, table: Table, place: Place) -> list[str]:
        numbers = dict(zip(table.number_ops, zip(*table.rows(), strict=True), strict=True))
        texts = text_cells(table)
        cells = {
            op: texts[op] if op in texts else format_column(numbers[op], op, self.ndigits)
            for op in self._ops[place.monitor]
        }
        columns: list[Sequence[object]] = [
            [NO_STAGE if self._chunks == 1 else stage for stage in table.vpp_stages],
            [table.step] * len(table),
            [encode_cell(second_name(table.data_type, name)) for name in table.names],
            [place.scope] * len(table),
        ]
        if place.monitor == "weight_grad":
            columns.append(table.micro_steps or [self._micro_steps] * len(table))
        line = ",".join(["%s"] * (len(columns) + len(cells)))
        return [line % row for row in zip(*columns, *cells.values(), strict=True)]

    def flush(self) -> None:
        """Bring the rows of the step to the disk."""
        rows, self._rows = self._rows, {}
        for monitor, lines in rows.items():
            assert self._step is not None
            first = self._step - self._step % self.step_count_per_record
            name = f"{monitor}_step{first}-{first + self.step_count_per_record - 1}.csv"
            micro = ["micro_step"] if monitor == "weight_grad" else []
            columns = ",".join([*COLUMNS, *micro, *self._ops[monitor]])
            data = "".join([f"{line}\n" for _, line in sorted(lines)]).encode()
            self._pending[name] = [(columns, data, len(lines))]
        super().flush()

    def _commit(self, name: str, first_line: str, data: bytes) -> None:
        if name not in self._headers:
            self._put_aside(self.run_dir / name)
        super()._commit(name, first_line, data)

    def _put_aside(self, path: Path) -> None:
        if path.exists() and self._step is not None and last_step(path) >= self._step:
            number = 1
            while (old := path.with_name(f"{path.name}.{number}")).exists():
                number += 1
            os.replace(path, old)
            logger.warning("%s has steps of an earlier training; it is called %s now", path, old.name)


def last_step(path: Path) -> int:
    """The step of the last whole row of a file; -1: there is none."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        lines = file.read().split(b"\n")[:-1]
    cells = lines[-1].split(b",") if lines else []
    return int(cells[1]) if len(cells) > 1 and cells[1].isdigit() else -1
