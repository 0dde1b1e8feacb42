"""Numbers for the tensors, steps and statistics of one data type, so that its values fit into dense arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from msmon.reading.row_files import KEYS
from msmon.reading.run import RankRun, Run

Ints = npt.NDArray[np.int64]

#: More micro-steps and stages than any training has. A damaged file may name the billionth.
_SMALL = 4096

#: The micro-step of data types that have none.
NO_MICRO_STEP = -1


@attrs.frozen(order=True, cache_hash=True)
class TensorKey:
    """One tensor: names are local to the pipeline stage and to the virtual stage."""

    pp_stage: int
    vpp_stage: int
    name: str

    def label(self) -> str:
        """The name, with the stages in front where there are several.

        >>> TensorKey(1, 0, "fc.weight").label(), TensorKey(0, 0, "").label()
        ('pp1/0:fc.weight', '(whole model)')
        """
        return (self.stage() if self.pp_stage or self.vpp_stage else "") + (self.name or "(whole model)")

    def stage(self) -> str:
        """Pipeline stage and virtual stage, as in front of a name."""
        return f"pp{self.pp_stage}/{self.vpp_stage}:"


@attrs.frozen(cache_hash=True)
class RowKey:
    """One tensor in one micro-step."""

    tensor: TensorKey
    micro_step: int


@attrs.frozen(kw_only=True, slots=False)
class Index:
    """Which rows (tensors and micro-steps) and steps a data type has, over all ranks."""

    data_type: str
    stats: tuple[str, ...]
    steps: Ints
    """Ascending."""
    rows: dict[RowKey, int]
    """Row -> its number, counted in the order in which the files name them: the order of execution."""

    def tensors(self) -> tuple[list[TensorKey], Ints]:
        """The tensors in the order of their first row, and for each row the number of its tensor."""
        numbers: dict[TensorKey, int] = {}
        of_row = np.array([numbers.setdefault(row.tensor, len(numbers)) for row in self.rows], dtype=np.int64)
        return list(numbers), of_row


Rename = Callable[[TensorKey], TensorKey | None]


def build_index(
    run: Run,
    data_type: str,
    *,
    rename: Rename = lambda key: key,
    rows: dict[RowKey, int] | None = None,
    after: int | None = None,
) -> Index:
    """Read the names and steps of a data type on all ranks.

    Args:
        rename: another key for a tensor; tensors of the same key fall together. None: it is not counted.
        rows: of the index of the steps before: rows keep their numbers, and new ones are added here.
        after: only files of later steps are read, as of a run that goes on; the index has only such steps.
    """
    rows = {} if rows is None else rows
    steps: set[int] = set()
    for rank in run.ranks.values():
        numbering = RowNumbers(rows, rank, rename=rename, grow=True)
        for file in rank.files.get(data_type, ()):
            if after is not None and file.last_step <= after:
                continue
            table = file.load(KEYS, run.note)
            if table.num_rows:
                numbering.of(table)
                step = table["step"].to_numpy()
                # Steps come in runs; one of each run is enough.
                steps.update(step[np.flatnonzero(np.diff(step, prepend=step[0] - 1))].tolist())
    return Index(
        data_type=data_type,
        stats=run.stats(data_type),
        steps=np.array(sorted(step for step in steps if after is None or step > after), dtype=np.int64),
        rows=rows,
    )


class RowNumbers:
    """Gives the rows of a rank's tables their numbers."""

    def __init__(
        self, rows: dict[RowKey, int], rank: RankRun, *, rename: Rename = lambda key: key, grow: bool = False
    ) -> None:
        self._rows = rows
        self._pp_stage = rank.pp_stage
        self._rename = rename
        self._grow = grow
        self._names: Any = None
        self._stages = self._micro_steps = np.zeros(0, dtype=np.int64)
        self._numbers = np.full(0, -2)
        self._keys: dict[TensorKey, TensorKey | None] = {}

    def of(self, table: Any) -> Ints:
        """The row number of each row of the table; -1 for those that are not counted."""
        column = table["name"].unify_dictionaries().combine_chunks()
        column = column.chunk(0) if hasattr(column, "chunks") else column
        names = column.dictionary
        codes = column.indices.to_numpy()
        vpp = table["vpp_stage"].to_numpy().astype(np.int64)
        has_micro_step = "micro_step" in table.column_names
        micro = (
            table["micro_step"].to_numpy().astype(np.int64) if has_micro_step else np.full(len(codes), NO_MICRO_STEP)
        )
        stages, vpp = _positions(vpp)
        micro_steps, micro = _positions(micro + 1)
        shape = (len(stages), len(micro_steps), len(names))
        code = (vpp * shape[1] + micro) * shape[2] + codes
        # Consecutive files name the same tensors: what was looked up once is kept. -2 is "not looked up yet".
        same = np.array_equal(stages, self._stages) and np.array_equal(micro_steps, self._micro_steps)
        if not same or not names.equals(self._names):
            self._names, self._stages, self._micro_steps = names, stages, micro_steps
            self._numbers = np.full(int(np.prod(shape)), -2, dtype=np.int64)
        numbers = self._numbers[code]
        unknown = np.flatnonzero(numbers == -2)
        if len(unknown):
            # In the order of the file, which is the order of execution.
            first = np.full(len(self._numbers), -1, dtype=np.int64)
            first[code[unknown[::-1]]] = unknown[::-1]
            new = np.flatnonzero(first >= 0)
            texts = names.to_pylist()
            for one in new[np.argsort(first[new], kind="stable")].tolist():
                rest, name = divmod(one, shape[2])
                stage, micro_step = divmod(rest, shape[1])
                self._numbers[one] = self._number(int(stages[stage]), texts[name], int(micro_steps[micro_step]) - 1)
            numbers = self._numbers[code]
        return np.asarray(numbers, dtype=np.int64)

    def _number(self, vpp_stage: int, text: str, micro_step: int) -> int:
        key = TensorKey(self._pp_stage, vpp_stage, text)
        if key not in self._keys:
            self._keys[key] = self._rename(key)
        kept = self._keys[key]
        if kept is None:
            return -1
        row = RowKey(kept, micro_step)
        return self._rows.setdefault(row, len(self._rows)) if self._grow else self._rows.get(row, -1)


def _positions(values: Ints) -> tuple[Ints, Ints]:
    """Distinct values, and the position of each value among them. Quick where all are small: then every small number
    is taken for one of them."""
    largest = int(values.max())
    if largest < _SMALL and int(values.min()) >= 0:
        return np.arange(largest + 1), values
    distinct, positions = np.unique(values, return_inverse=True)
    return distinct, positions
