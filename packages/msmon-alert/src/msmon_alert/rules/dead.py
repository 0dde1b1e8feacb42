"""AnomalyDead: a tensor nearly all of whose elements became zero."""

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

_MEAN_OF = 100


@attrs.frozen
class AnomalyDead(ColumnRule):
    """Fires when `zeros` is at least `threshold` for `steps` values on end, in a tensor that used to be alive.

    Alive: the average share of elements that are not zero was more than twice what the threshold leaves. A tensor that
    was as sparse from its first step on (the gradient of a large embedding, a mask) is left alone. `zeros` of a second
    moment (`exp_avg_sq`) is not judged: nearly all of its elements are always small.

    *What it means for training*: ReLUs that no input reaches any more, a gradient that underflows in half precision, an
    expert that gets no tokens.

    *Cost*: 16 bytes a tag; a few numpy operations a table.

    *Blind spots*: a layer that is dead from the start; dead units that are fewer than the threshold (see
    `AnomalySpike`, which follows the share of zeros); values that are small but above `eps`.

    Raises ValueError for a threshold outside of (0, 1] or steps that are not an integer >= 1.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyDead(threshold=0.9, steps=2)])
    >>> shares = [0.5, 0.6, 0.95, 0.4, 0.95, 1.0]
    >>> [len(monitor.observe(step, ["w"], ["zeros"], np.array([[share]]))) for step, share in enumerate(shares)]
    [0, 0, 0, 0, 0, 1]
    """

    threshold: float = 0.99
    """Share of elements that are zero."""
    steps: int = 1
    """How many values on end have to reach it."""

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = {
        "count": np.int32,
        "streak": np.int32,
        "alive": np.float64,
    }

    def __attrs_post_init__(self) -> None:
        require(
            number("threshold", self.threshold, above=0, at_most=1),
            number("steps", self.steps, at_least=1, integer=True),
        )

    def applies(self, stat: str) -> bool:
        return stat == "zeros"

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        count, streak, alive = history["count"], history["streak"], history["alive"]
        reference = 1 - alive
        dead = values >= self.threshold
        streak[:] = np.where(dead, streak + 1, 0)
        was_alive = (count > 0) & (alive > 2 * (1 - self.threshold))
        fired = (streak >= self.steps) & was_alive & ~batch.discrete & ~batch.layout.mask("exp_avg_sq")
        finite = np.isfinite(values)
        np.minimum(count + finite, _MEAN_OF, out=count)
        np.add(alive, (1 - values - alive) / np.maximum(count, 1), out=alive, where=finite)
        return fired, reference
