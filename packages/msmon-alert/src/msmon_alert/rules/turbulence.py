"""AnomalyTurbulence: a norm or mean far above its own past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from msmon_alert.arguments import number, require
from msmon_alert.batch import Batch, Bools, Floats
from msmon_alert.memory import Array
from msmon_alert.rule import ColumnRule

PLAIN_MEAN_OF = 100
"""So many finite values are averaged evenly; an exponential average follows."""
DECAY = 0.99


@attrs.frozen
class AnomalyTurbulence(ColumnRule):
    """Fires on `norm` and `mean` when abs(value) > (1 + threshold) * average.

    The average is the mean of abs over the first 100 finite values of this tag and statistic, then an exponential
    average (0.99). Values that are not finite never enter it. No history, or one of 0: the rule does not fire.

    *What it means for training*: an activation, gradient or weight became much larger than it used to be: a loss spike
    on its way, a bad batch, a learning rate that is too high.

    *Cost*: 12 bytes a tag and statistic; a dozen numpy operations a table.

    *Blind spots*: values that fall (see `AnomalyVanish`); growth that is slow against 100 steps; the first value; a
    `mean` swings around zero, so a low threshold alarms on healthy runs, above all in the first steps. An integer or
    bool tensor has no alarm on its norm.

    Raises ValueError for a threshold that is not a number >= 0.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyTurbulence(threshold=0.5)])
    >>> [len(monitor.observe(step, ["w"], ["norm"], np.array([[value]]))) for step, value in enumerate([1, 1.1, 5])]
    [0, 0, 1]
    """

    threshold: float
    """How far above its average a value may be, relative: 0.5 allows one and a half times the average."""

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = {"count": np.int32, "average": np.float64}

    def __attrs_post_init__(self) -> None:
        require(number("threshold", self.threshold, at_least=0))

    def applies(self, stat: str) -> bool:
        return stat in ("norm", "mean")

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        count, average = history["count"], history["average"]
        magnitude = np.abs(values)
        reference = average.copy()
        fired = (average > 0) & (magnitude > (1 + self.threshold) * average)
        if stat == "norm":
            fired &= ~batch.discrete
        finite = np.isfinite(magnitude)
        np.minimum(count + finite, PLAIN_MEAN_OF + 1, out=count)
        weight = np.where(count <= PLAIN_MEAN_OF, 1 / np.maximum(count, 1), 1 - DECAY)
        np.add(average, weight * (magnitude - average), out=average, where=finite)
        return fired, reference
