"""What the rules about something that stopped share: a past that was long and plain enough."""

from __future__ import annotations

import numpy as np

from msmon_alert.batch import Bools
from msmon_alert.memory import Array

ESTABLISHED = 20
"""So many values on end make up a habit whose end is news; fewer may be the noise of a beginning."""


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
