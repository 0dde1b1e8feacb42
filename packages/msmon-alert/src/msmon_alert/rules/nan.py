"""AnomalyNan: NaN, Inf, and values above a fixed bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from msmon_alert.arguments import number, require
from msmon_alert.batch import COUNTS, Batch, Bools, Floats
from msmon_alert.memory import Array
from msmon_alert.rule import ColumnRule

_INF_SO_FAR, _NOT_ALWAYS_INF = 1, 2


@attrs.frozen
class AnomalyNan(ColumnRule):
    """Fires on NaN, on +-Inf, on `nans` > 0 and `infs` > 0; with a threshold also when abs(value) exceeds it.

    The threshold is not applied to `zeros`, `nans`, `infs`, nor to the norm of an integer or bool tensor. An input that
    needs no gradient and has held Inf since its first value is left alone while it holds no NaN: attention masks hold
    -Inf in healthy models.

    *What it means for training*: the number is lost, and with the next update the weights are. The first tensor with
    a NaN is the one to look at: everything after it is infected.

    *Cost*: 1 byte a tag and statistic; one comparison a value.

    *Blind spots*: a NaN that is masked out before it reaches a monitored tensor; a mask that is wrongly infinite from
    its first step on.

    Raises ValueError for a threshold that is neither None nor a number > 0.

    >>> import numpy as np
    >>> from msmon_alert import Monitor
    >>> Monitor([AnomalyNan()]).observe(3, ["w"], ["max"], np.array([[np.inf]]))[0].value
    inf
    """

    threshold: float | None = None

    history_fields: ClassVar[Mapping[str, npt.DTypeLike]] = {"past": np.uint8}

    def __attrs_post_init__(self) -> None:
        require(number("threshold", self.threshold, above=0, optional=True))

    def applies(self, stat: str) -> bool:
        return True

    def check_column(
        self, stat: str, values: Floats, history: Mapping[str, Array], batch: Batch
    ) -> tuple[Bools, Floats | None]:
        past = history["past"]
        infinite = batch.holds_inf & ~batch.holds_nan
        past[(past == 0) & infinite] = _INF_SO_FAR
        # Once there is a past, a NaN hides whether the tensor still holds its Inf: nothing is concluded from it.
        past[~infinite & ((past == 0) | ~batch.holds_nan)] = _NOT_ALWAYS_INF

        fired = ~np.isfinite(values)
        if stat in COUNTS:
            fired |= values > 0
        elif self.threshold is not None and stat != "zeros":
            above = np.abs(values) > self.threshold
            fired |= above & ~batch.discrete if stat == "norm" else above
        fired &= ~(batch.no_grad & (past == _INF_SO_FAR) & ~batch.holds_nan)
        return fired, None
