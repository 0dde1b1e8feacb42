"""AnomalyDead: a tensor nearly all of whose elements became zero."""

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

_CLEARLY_MORE = 10
_NOISE = 1e-6
"""A norm of a hundred times the usual `eps`: below it, `zeros` counts how rounding noise falls."""
_ALL_ALIVE = 0.5
"""A low threshold leaves much; half of the elements alive is enough then."""


@attrs.frozen
class AnomalyDead(ColumnRule):
    """Fires when `zeros` is at least `threshold` for `steps` values on end, in a tensor that used to be alive.

    Alive: in the 20 values before that, at least, the share of elements that are not zero was ten times what the
    threshold leaves (10 % with the default), and the norm, if the table has it, at least 1e-6. It fires at every value
    until the tensor is back. A tensor that is as sparse now and then (the gradient of a large embedding, a mask) or
    rounding noise (the gradient of a bias that has no effect) is left alone.
    `zeros` of a second moment (`exp_avg_sq`) is not judged, since nearly all of its elements are always small, nor that
    of further optimizer state (`state`), which may be anything.

    *What it means for training*: ReLUs that no input reaches any more, a gradient that underflows in half precision, an
    expert that gets no tokens.

    *Cost*: 16 bytes a tag; a few numpy operations a table.

    *Blind spots*: the first 20 values, so a layer that is dead from the start; dead units that are fewer than the
    threshold (see `AnomalySpike`, which follows the share of zeros); values that are small but above `eps`; tensors
    whose norm is below 1e-6.

    Raises ValueError for a threshold outside of (0, 1] or steps that are not an integer >= 1.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> monitor = Monitor([AnomalyDead(steps=2)])
    >>> shares = [0.5] * 20 + [1.0, 1.0]
    >>> [step for step, zeros in enumerate(shares) if monitor.observe(step, ["w"], ["zeros"], np.array([[zeros]]))]
    [21]
    """

    threshold: float = 0.99
    """Share of elements that are zero."""
    steps: int = 1
    """How many values on end have to reach it."""

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = HISTORY

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
        finite = np.isfinite(values)
        stopped = finite & (values >= self.threshold)
        alive = finite & ~stopped & (1 - values >= min(_CLEARLY_MORE * (1 - self.threshold), _ALL_ALIVE))
        if "norm" in batch.stats:
            alive &= ~(batch.column("norm") < _NOISE)
        fired, reference = judge(values, finite, alive, stopped, history, steps=self.steps)
        unjudged = batch.discrete | batch.layout.mask("exp_avg_sq") | batch.layout.mask("state")
        return fired & ~unjudged, reference
