"""What the rules about weights share: the statistics of a weight before and after a step, side by side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from msmon_alert.batch import Batch, Bools
from msmon_alert.memory import Memory

BEFORE, AFTER = "param_origin", "param_updated"
_NEVER = 0
"""New rows of a memory are zero, so steps are kept plus one."""


def report_column(batch: Batch) -> int | None:
    """The statistic under which a finding about a whole tensor is reported: `norm`, else the first number."""
    if "norm" in batch.stats:
        return batch.stats.index("norm")
    return next((index for index, _, _ in batch.columns()), None)


def rows_of(batch: Batch, mask: Bools) -> npt.NDArray[np.intp]:
    """Rows in the histories of the tensors that the mask picks."""
    picked = np.flatnonzero(mask)
    return picked + batch.tensors.start if isinstance(batch.tensors, slice) else batch.tensors[picked]


def remember(batch: Batch, mask: Bools, memory: Memory) -> None:
    """Keeps every statistic of the picked tensors, with the step."""
    rows = rows_of(batch, mask)
    for _, stat, values in batch.columns():
        memory.array(f"{stat}/value", np.float64)[rows] = values[mask]
        memory.array(f"{stat}/step", np.int64)[rows] = batch.step + 1


def compare(batch: Batch, mask: Bools, memory: Memory, step: int, tolerance: float) -> tuple[Bools, Bools]:
    """Compares the picked tensors with what was remembered at `step`.

    Returns, for each picked tensor, whether anything was remembered and whether all of it is equal.
    """
    rows = rows_of(batch, mask)
    known = np.zeros(len(rows), dtype=np.bool_)
    equal = np.ones(len(rows), dtype=np.bool_)
    for _, stat, values in batch.columns():
        past = memory.array(f"{stat}/value", np.float64)[rows]
        kept = memory.array(f"{stat}/step", np.int64)[rows]
        present = (kept == step + 1) & (kept != _NEVER)
        now = values[mask]
        same = (now == past) | (np.isnan(now) & np.isnan(past))
        if tolerance:
            same |= np.abs(now - past) <= tolerance * np.maximum(np.abs(now), np.abs(past))
        known |= present
        equal &= same | ~present
    return known, equal
