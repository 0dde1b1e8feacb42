"""AnomalyConstant: an activation all of whose elements became equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from msmon_alert.batch import Batch, Bools, Floats
from msmon_alert.memory import Array
from msmon_alert.rule import ColumnRule
from msmon_alert.rules.habit import HISTORY, judge

_MANY = 16
"""Elements that a tensor must have for their equality to be no accident."""
_MORE_THAN_A_FLAG = 2


@attrs.frozen
class AnomalyConstant(ColumnRule):
    """Fires when all elements of an activation are equal, after at least 20 values on end in which they differed.

    It judges `actv` and needs `min`, `max` and `norm`; it is reported under `max`, with the last `max` at which the
    elements differed as the history. It fires at every value until they differ again.

    Tensors of few elements are left alone: those that may have fewer than 16, which is seen from the norm being less
    than four times the largest element. So are masks: integers that take two values only, and floating-point inputs
    that need no gradient. A tensor of zeros is left to `AnomalyVanish` and `AnomalyDead`, unless it is of integers.

    *What it means for training*: a batch that is padding alone, a data loader that repeats one token, a layer that puts
    out one value whatever comes in, a router that sends all tokens to one expert.

    *Cost*: 16 bytes a tag; a few numpy operations a table.

    *Blind spots*: the first 20 values; elements that are nearly equal, or equal along one dimension only.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyConstant()])
    >>> rows = [[1.0, 99.0, 2000.0]] * 20 + [[7.0, 7.0, 158.4]]
    >>> for step, row in enumerate(rows):
    ...     for alert in monitor.observe(step, ["0:ids.input:0/rank0/actv"], ["min", "max", "norm"], np.array([row])):
    ...         print(alert.step, alert.value, alert.history)
    20 7.0 99.0
    """

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = HISTORY

    def applies(self, stat: str) -> bool:
        return stat == "max"

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        if not {"min", "norm"} <= set(batch.stats):
            return np.zeros(len(values), dtype=np.bool_), None
        smallest, norm = (batch.column(stat) for stat in ("min", "norm"))
        judged = batch.layout.mask("actv") & (batch.discrete | ~batch.no_grad)
        finite = judged & np.isfinite(smallest) & np.isfinite(values) & np.isfinite(norm)
        largest = np.maximum(np.abs(smallest), np.abs(values))
        many = norm * norm >= _MANY * largest * largest
        spread = np.where(batch.discrete, values - smallest >= _MORE_THAN_A_FLAG, values > smallest)
        alive = finite & many & spread
        stopped = finite & (values == smallest) & (batch.discrete | (values != 0))
        return judge(values, finite, alive, stopped, history)
