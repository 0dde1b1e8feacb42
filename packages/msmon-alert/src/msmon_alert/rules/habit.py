"""What the rules about something that stopped share: a past that was long and plain enough."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from msmon_alert.batch import Bools, Floats
from msmon_alert.memory import Array

ESTABLISHED = 20
"""So many values on end make up a habit whose end is news; fewer may be the noise of a beginning."""


HISTORY: Mapping[str, npt.DTypeLike] = {"habit": np.int32, "streak": np.int32, "last": np.float64}
"""What a rule remembers for `judge`."""


def judge(
    values: Floats, finite: Bools, alive: Bools, stopped: Bools, history: Mapping[str, Array], *, steps: int = 1
) -> tuple[Bools, Floats]:
    """Where something has stopped, see `broken_habit`, and the last value of each while it was alive."""
    last = history["last"]
    reference = last.copy()
    last[alive] = values[alive]
    between = finite & ~alive & ~stopped
    return broken_habit(alive, stopped, between, history["habit"], history["streak"], steps), reference


def broken_habit(alive: Bools, stopped: Bools, between: Bools, habit: Array, streak: Array, steps: int) -> Bools:
    """Where a tensor that was alive for long has stopped, `steps` values on end.

    Args:
        alive, stopped, between: [n], what the new value says; where none is true nothing is learned from it.
        habit: [n], values on end that were alive, up to the present stop; updated.
        streak: [n], values on end that had stopped; updated.
        steps: how long a streak has to be.

    Returns:
        [n]; it stays true until the tensor is alive again. Then the habit begins anew.
    """
    habit[:] = np.where(alive, np.where(streak > 0, 1, habit + 1), np.where(between, 0, habit))
    streak[:] = np.where(stopped, streak + 1, np.where(alive | between, 0, streak))
    fired: Bools = (streak >= steps) & (habit >= ESTABLISHED)
    return fired
