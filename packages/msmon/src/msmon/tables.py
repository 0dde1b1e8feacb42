"""Rows as tables: their columns, their order, and what a tensor is called."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from msmon_hooks import TensorRef
from msmon_io import FINGERPRINT, TEXT_OPS, Table
from msmon_stats import OPS


def number_ops(ops: Sequence[str]) -> list[str]:
    """The columns that hold numbers."""
    return [op for op in ops if op in OPS]


def unfilled_tables(refs: Sequence[TensorRef], ops: Sequence[str]) -> list[tuple[NDArray[np.intp], Table]]:
    """One table per data type, its rows in the documented order, without step, numbers and fingerprints.

    Returns:
        For each, the index in `refs` of each row, and the table.
    """
    by_type: dict[str, list[int]] = {}
    for index, ref in enumerate(refs):
        by_type.setdefault(ref.data_type, []).append(index)
    made = []
    for data_type, members in by_type.items():
        members.sort(key=lambda index: refs[index].order)
        rows = [refs[index] for index in members]
        micro_steps = [ref.micro_step for ref in rows]
        texts = {
            "shape": [str(list(ref.shape)) for ref in rows],
            "dtype": [ref.dtype for ref in rows],
            FINGERPRINT: [""] * len(rows),
        }
        table = Table(
            data_type=data_type,
            step=0,
            names=[ref.name for ref in rows],
            vpp_stages=[ref.vpp_stage for ref in rows],
            micro_steps=[micro or 0 for micro in micro_steps] if micro_steps[0] is not None else None,
            ops=list(ops),
            values=(),
            text={op: texts[op] for op in TEXT_OPS if op in ops},
        )
        made.append((np.array(members, np.intp), table))
    return made
