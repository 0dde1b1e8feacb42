"""AnomalyFrozen: a weight that steps no longer change."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from msmon_alert._arguments import number, require
from msmon_alert.batch import Batch
from msmon_alert.memory import Memory
from msmon_alert.rule import Finding, Rule
from msmon_alert.rules import _weights


@attrs.frozen
class AnomalyFrozen(Rule):
    """Fires when an optimizer step left a weight as it was, `steps` times on end.

    Compares all statistics of `param_updated` with those of `param_origin` of the same tensor in the same step, bit by
    bit. It needs both tables (`param_distribution`). Reported under `norm` (without it: the first statistic), with the
    norm before the step as the history.

    Steps in which no weight of the table moved are passed over: the learning rate is zero (first step of a warm-up) or
    a loss scaler skipped the step. A weight that never moved is left alone: it is frozen on purpose, or was never used.

    *What it means for training*: no gradient arrives (an expert without tokens, a part of the graph that was cut off),
    or the update is lost in rounding, as small updates of bf16 weights are.

    *Cost*: 16 bytes a weight and statistic, and 5 a weight; one comparison a value.

    *Blind spots*: an update that keeps every statistic (a permutation; with `norm` alone, a change of signs); weights
    that never moved; a step that moves no weight at all; momentum or weight decay still move a weight whose gradient
    is gone (see `AnomalyVanish`).

    Raises ValueError for steps that are not an integer >= 1.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyFrozen(steps=1)])
    >>> before, after = ["a/param_origin", "b/param_origin"], ["a/param_updated", "b/param_updated"]
    >>> for step, moved in enumerate([0.1, 0.0]):
    ...     _ = monitor.observe(step, before, ["norm"], np.array([[1.0], [1.0]]))
    ...     print([alert.tag for alert in monitor.observe(step, after, ["norm"], np.array([[1 + moved], [2.0]]))])
    []
    ['a/param_updated']
    """

    steps: int = 2

    def __attrs_post_init__(self) -> None:
        require(number("steps", self.steps, at_least=1, integer=True))

    def check(self, batch: Batch, memory: Memory) -> Iterator[Finding]:
        before = batch.layout.mask(_weights.BEFORE)
        if before.any():
            _weights.remember(batch, before, memory)
        after = batch.layout.mask(_weights.AFTER)
        column = _weights.report_column(batch)
        if column is None or not after.any():
            return
        known, equal = _weights.compare(batch, after, memory, batch.step, tolerance=0)
        moved = known & ~equal
        if not moved.any():
            return
        rows = _weights.rows_of(batch, after)
        ever_moved = memory.array("moved", np.bool_)
        streak = memory.array("streak", np.int32)
        streak[rows] = np.where(known & equal, streak[rows] + 1, 0)
        fired = np.zeros(len(batch.values), dtype=np.bool_)
        fired[after] = ever_moved[rows] & (streak[rows] >= self.steps) & ~batch.no_grad[after]
        ever_moved[rows] |= moved
        yield column, fired, batch.values[:, column]
