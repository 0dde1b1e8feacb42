"""AnomalyVanish: a norm that fell to nothing."""

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
from msmon_alert.rules.habit import HISTORY, judge

_CLEARLY_ABOVE = 1000


@attrs.frozen
class AnomalyVanish(ColumnRule):
    """Fires when `norm` or `rms` is below `floor` after at least 20 values on end that were 1000 times above it.

    It fires at every value until the tensor is back. Tensors that are near zero now and then (fresh biases, the
    gradient of a bias that has no effect, masks) are left alone.

    *What it means for training*: a gradient that no longer arrives, an expert that gets no tokens, an optimizer state
    that was lost, a layer that puts out zeros.

    *Cost*: 16 bytes a tag and statistic; a few numpy operations a table.

    *Blind spots*: the first 20 values; a slow decay, which passes through the range between; layers that are dropped at
    random (stochastic depth) alarm when they are first dropped. Integer tensors are not judged.

    Raises ValueError for a floor that is not a number > 0.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyVanish()])
    >>> norms = [1.0] * 20 + [0.0]
    >>> [step for step, norm in enumerate(norms) if monitor.observe(step, ["w"], ["norm"], np.array([[norm]]))]
    [20]
    """

    floor: float = 1e-12

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = HISTORY

    def __attrs_post_init__(self) -> None:
        require(number("floor", self.floor, above=0))

    def applies(self, stat: str) -> bool:
        return stat in ("norm", "rms")

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        finite = np.isfinite(values)
        stopped = finite & (values < self.floor)
        alive = finite & (values >= _CLEARLY_ABOVE * self.floor)
        fired, reference = judge(values, finite, alive, stopped, history)
        return fired & ~batch.discrete, reference
