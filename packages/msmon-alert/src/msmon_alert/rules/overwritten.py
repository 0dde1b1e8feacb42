"""AnomalyOverwritten: a weight that changed between two optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from msmon_alert.batch import Batch, Bools
from msmon_alert.memory import Memory
from msmon_alert.rule import Finding, Rule
from msmon_alert.rules import weights

_ROUNDING = 1e-10
"""Relative; a device that sums in changing order gives the same statistics to about 1e-13."""
_UNTOUCHED, _TOUCHED_BY_DESIGN = 1, 2


@attrs.frozen
class AnomalyOverwritten(Rule):
    """Fires when a weight is not what the previous optimizer step left behind.

    Compares all statistics of `param_origin` with those of `param_updated` of the step before. It needs both tables
    (`param_distribution`) in two steps on end, so it rests where steps are sampled with an interval. Reported under
    `norm` (without it: the first statistic), with the norm after the previous step as the history.

    A weight that had changed at the first comparison is left alone: some trainings clip, project or average weights
    between steps.

    *What it means for training*: memory was corrupted (a flipped bit), a checkpoint was loaded into the wrong place, or
    code that should not touches a weight. It finds a change of one element long before the loss does.

    *Cost*: 16 bytes a weight and statistic, and 1 a weight; one comparison a value.

    *Blind spots*: a change during the optimizer step or before the first comparison; one smaller than 1e-10 of every
    statistic; weights that are written between steps by design.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyOverwritten()])
    >>> for step, (before, after) in enumerate([(1.0, 1.1), (1.1, 1.2), (1.7, 1.8)]):
    ...     print([alert.value for alert in monitor.observe(step, ["w/param_origin"], ["norm"], np.array([[before]]))])
    ...     _ = monitor.observe(step, ["w/param_updated"], ["norm"], np.array([[after]]))
    []
    []
    [1.7]
    """

    def check(self, batch: Batch, memory: Memory) -> Iterator[Finding]:
        before = batch.layout.mask(weights.BEFORE)
        column = weights.report_column(batch)
        if column is not None and before.any():
            yield from self._judge(batch, before, column, memory)
        after = batch.layout.mask(weights.AFTER)
        if after.any():
            weights.remember(batch, after, memory)

    def _judge(self, batch: Batch, before: Bools, column: int, memory: Memory) -> Iterator[Finding]:
        known, equal = weights.compare(batch, before, memory, batch.step - 1, tolerance=_ROUNDING)
        rows = weights.rows_of(batch, before)
        habit = memory.array("habit", np.uint8)
        changed = known & ~equal
        fired = np.zeros(len(batch.values), dtype=np.bool_)
        fired[before] = changed & (habit[rows] == _UNTOUCHED)
        unknown = known & (habit[rows] == 0)
        habit[rows] = np.where(unknown, np.where(changed, _TOUCHED_BY_DESIGN, _UNTOUCHED), habit[rows])
        reference = np.full(len(batch.values), np.nan)
        reference[before] = memory.array(f"{batch.stats[column]}/value", np.float64)[rows]
        yield column, fired, reference
