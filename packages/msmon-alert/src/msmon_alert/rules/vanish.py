"""AnomalyVanish: a norm that fell to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from msmon_alert._arguments import number, require
from msmon_alert.batch import Batch, Bools, Floats
from msmon_alert.memory import Array
from msmon_alert.rule import ColumnRule

_CLEARLY_ABOVE = 1000
_MEAN_OF = 100


@attrs.frozen
class AnomalyVanish(ColumnRule):
    """Fires when `norm` or `rms` is below `floor` although its average used to be clearly above, 1000 times the floor.

    The average is that of the last 100 values or so. Tensors that were always near zero (fresh biases, the gradient of
    a key bias, masks) have no such past and are left alone, so the floor may be taken high.

    *What it means for training*: a gradient that no longer arrives, an expert that gets no tokens, an optimizer state
    that was lost, a layer that puts out zeros.

    *Cost*: 12 bytes a tag and statistic; a few numpy operations a table.

    *Blind spots*: a tensor that was zero from its first step on; a decay slower than 100 steps; layers that are dropped
    at random (stochastic depth) alarm whenever they are dropped. Integer tensors are not judged.

    Raises ValueError for a floor that is not a number > 0.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyVanish()])
    >>> [len(monitor.observe(step, ["w"], ["norm"], np.array([[value]]))) for step, value in enumerate([0, 1, 1, 0])]
    [0, 0, 0, 1]
    """

    floor: float = 1e-12

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = {"count": np.int32, "average": np.float64}

    def __attrs_post_init__(self) -> None:
        require(number("floor", self.floor, above=0))

    def applies(self, stat: str) -> bool:
        return stat in ("norm", "rms")

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        count, average = history["count"], history["average"]
        reference = average.copy()
        fired = (values < self.floor) & (average > _CLEARLY_ABOVE * self.floor) & ~batch.discrete
        finite = np.isfinite(values)
        np.minimum(count + finite, _MEAN_OF, out=count)
        np.add(average, (values - average) / np.maximum(count, 1), out=average, where=finite)
        return fired, reference
