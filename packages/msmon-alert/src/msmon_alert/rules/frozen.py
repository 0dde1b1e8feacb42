"""AnomalyFrozen: a weight that steps no longer change."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from msmon_alert.arguments import number, require
from msmon_alert.batch import Batch
from msmon_alert.memory import Memory
from msmon_alert.rule import Finding, Rule
from msmon_alert.rules import weights
from msmon_alert.rules.habit import broken_habit

_PLAIN = 1e-6
"""Relative change of a statistic that is more than rounding."""


@attrs.frozen
class AnomalyFrozen(Rule):
    """Fires when an optimizer step left a weight as it was, `steps` times on end, after at least 20 that changed it.

    Compares all statistics of `param_updated` with those of `param_origin` of the same tensor in the same step, bit by
    bit. It needs both tables (`param_distribution`). Reported under `norm` (without it: the first statistic), with the
    norm before the step as the history. It fires at every step until the weight moves again.

    Steps in which no weight of the table moved are passed over: the learning rate is zero (first step of a warm-up) or
    a loss scaler skipped the step. A weight that rests now and then, moves by less than 1e-6 of its statistics or
    never moved is left alone: it is frozen on purpose, its gradient is rounding noise, or the schedule is at its end.

    *What it means for training*: no gradient arrives (an expert without tokens, a part of the graph that was cut off),
    or the update is lost in rounding, as small updates of bf16 weights are.

    *Cost*: 16 bytes a weight and statistic, and 8 a weight; one comparison a value.

    *Blind spots*: the first 20 steps, so a weight that is never used; an update that keeps every statistic (a
    permutation; with `norm` alone, a change of signs); a step that moves no weight at all; momentum or weight decay
    still move a weight whose gradient is gone (see `AnomalyVanish`).

    Raises ValueError for steps that are not an integer >= 1.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyFrozen()])
    >>> for step in range(24):
    ...     before = [[1.0 + step], [1.0 + min(step, 21)]]  # the second rests from step 21 on
    ...     after = [[2.0 + step], [1.0 + min(step + 1, 21)]]
    ...     _ = monitor.observe(step, ["a/param_origin", "b/param_origin"], ["norm"], np.array(before))
    ...     for alert in monitor.observe(step, ["a/param_updated", "b/param_updated"], ["norm"], np.array(after)):
    ...         print(alert.step, alert.tag)
    22 b/param_updated
    23 b/param_updated
    """

    steps: int = 2

    def __attrs_post_init__(self) -> None:
        require(number("steps", self.steps, at_least=1, integer=True))

    def check(self, batch: Batch, memory: Memory) -> Iterator[Finding]:
        before = batch.layout.mask(weights.BEFORE)
        if before.any():
            weights.remember(batch, before, memory)
        after = batch.layout.mask(weights.AFTER)
        column = weights.report_column(batch)
        if column is None or not after.any():
            return
        known, equal = weights.compare(batch, after, memory, batch.step, tolerance=0)
        moved = known & ~equal
        if not moved.any():
            return
        rows = weights.rows_of(batch, after)
        habits, streaks = memory.array("habit", np.int32), memory.array("streak", np.int32)
        habit, streak = habits[rows], streaks[rows]
        _, close = weights.compare(batch, after, memory, batch.step, tolerance=_PLAIN)
        alive = known & ~close
        frozen = broken_habit(alive, known & equal, moved & ~alive, habit, streak, self.steps)
        habits[rows], streaks[rows] = habit, streak
        fired = np.zeros(len(batch.values), dtype=np.bool_)
        fired[after] = frozen & ~batch.no_grad[after]
        yield column, fired, batch.values[:, column]
