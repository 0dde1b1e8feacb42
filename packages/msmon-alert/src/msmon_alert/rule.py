"""What a rule is. Subclass `ColumnRule` for a rule about one statistic at a time, `Rule` for anything else."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from msmon_alert.batch import Batch, Bools, Floats
from msmon_alert.memory import Array, Memory

Finding = tuple[int, Bools, "Floats | None"]
"""Column of the table, [n] where the rule fired, [n] what each value was compared with (or None)."""


class Rule(abc.ABC):
    """A rule holds its arguments only. What it remembers lies in the `Memory` that the monitor hands it, so one rule
    object can serve several monitors, and histories can be saved and restored."""

    @property
    def name(self) -> str:
        """The name in configurations and reports: that of the class."""
        return type(self).__name__

    def accepts(self, arrays: Mapping[str, Array]) -> bool:
        """Whether a saved history fits these arguments; if not, the rule begins without history."""
        return True

    @abc.abstractmethod
    def check(self, batch: Batch, memory: Memory) -> Iterator[Finding]:
        """Looks at one table and updates the histories; yields at most one finding a column.

        Called for every table of every step, also where an earlier rule fired, so that histories are complete.
        No tag occurs twice in a batch.
        """


class ColumnRule(Rule):
    """A rule that judges each statistic of each tensor by itself.

    >>> import attrs, numpy as np
    >>> @attrs.frozen
    ... class AnomalyNegative(ColumnRule):
    ...     def applies(self, stat):
    ...         return stat == "mean"
    ...     def check_column(self, stat, values, history, batch):
    ...         return values < 0, None
    >>> from msmon_alert import Monitor
    >>> alerts = Monitor([AnomalyNegative()]).observe(0, ["a", "b"], ["mean"], np.array([[1.0], [-1.0]]))
    >>> [alert.tag for alert in alerts]
    ['b']
    """

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = {}
    """What is remembered for each tag and statistic: name -> dtype. Begins as zero."""

    def history_shape(self, field: str) -> tuple[int, ...]:
        """Shape of one tag's entry of a history field; () is one number."""
        return ()

    @abc.abstractmethod
    def applies(self, stat: str) -> bool:
        """Whether the rule judges this statistic."""

    @abc.abstractmethod
    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        """Judges `values` [n] of one statistic.

        `history` has an array [n, ...] for each of `history_fields`; write the new state into these arrays.
        Returns where it fired, [n], and what each value was compared with, [n] or None. Values may be nan or infinite;
        numpy's warnings are off.
        """

    def accepts(self, arrays: Mapping[str, Array]) -> bool:
        fields = [(name.rpartition("/")[2], array.shape[1:]) for name, array in arrays.items()]
        return all(field in self.history_fields and self.history_shape(field) == shape for field, shape in fields)

    def check(self, batch: Batch, memory: Memory) -> Iterator[Finding]:
        for column, stat, values in batch.columns():
            if not self.applies(stat):
                continue
            arrays = {
                field: memory.array(f"{stat}/{field}", dtype, self.history_shape(field))
                for field, dtype in self.history_fields.items()
            }
            history: dict[str, Any] = {field: array[batch.rows] for field, array in arrays.items()}
            fired, reference = self.check_column(stat, values, history, batch)
            if isinstance(batch.rows, np.ndarray):
                for field, array in arrays.items():
                    array[batch.rows] = history[field]
            yield column, fired, reference
