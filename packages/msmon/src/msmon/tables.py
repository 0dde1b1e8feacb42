"""From the sufficient statistics of a step to tables of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from msmon_hooks import TensorRef
from msmon_io import Table
from msmon_stats import OPS, finalize, merge

TEXT_OPS = ("shape", "dtype")


@frozen(kw_only=True, eq=False)
class Row:
    """A row that stands in no table, and why."""

    ref: TensorRef
    reason: str


def split_rows(
    refs: Sequence[TensorRef], handles: NDArray[np.intp], matrix: NDArray[np.float64]
) -> tuple[list[TensorRef], NDArray[np.float64], list[Row]]:
    """The refs that have statistics, their sufficient statistics float64 ``[n, 8]``, and the others with a reason.

    Refs that merge come back once, with the statistics of all of their tensors together.
    """
    count = np.zeros(len(refs))
    readable = handles >= 0
    count[readable] = matrix[handles[readable], 0]
    kept: list[int] = np.flatnonzero(count > 0).tolist()
    empty: list[int] = np.flatnonzero(count <= 0).tolist()
    left_out = [Row(ref=refs[index], reason="type not supported" if handles[index] < 0 else "empty") for index in empty]
    kept_refs, partials = [refs[index] for index in kept], matrix[handles[kept]]
    if any(ref.merges for ref in kept_refs):
        kept_refs, partials = _merge_rows(kept_refs, partials)
    return kept_refs, partials, left_out


def _merge_rows(
    refs: Sequence[TensorRef], partials: NDArray[np.float64]
) -> tuple[list[TensorRef], NDArray[np.float64]]:
    joined: dict[tuple[str, int, str, int | None], tuple[TensorRef, NDArray[np.float64]]] = {}
    for ref, row in zip(refs, partials, strict=True):
        first = joined.get(ref.key)
        joined[ref.key] = (ref, row) if first is None else (first[0], merge(first[1], row))
    return [ref for ref, _ in joined.values()], np.array([row for _, row in joined.values()])


def number_ops(ops: Sequence[str]) -> list[str]:
    """The columns that hold numbers."""
    return [op for op in ops if op in OPS]


def tables(step: int, refs: Sequence[TensorRef], partials: NDArray[np.float64], ops: Sequence[str]) -> list[Table]:
    """One table per data type, its rows in the documented order.

    Args:
        step: number of the step.
        refs: one per row of ``partials``.
        partials: sufficient statistics, float64 ``[n, 8]``.
        ops: the columns, text columns included, in their order.
    """
    values = finalize(partials, number_ops(ops))
    by_type: dict[str, list[int]] = {}
    for index, ref in enumerate(refs):
        by_type.setdefault(ref.data_type, []).append(index)
    made = []
    for data_type, members in by_type.items():
        members.sort(key=lambda index: refs[index].order)
        rows = [refs[index] for index in members]
        micro_steps = [ref.micro_step for ref in rows]
        texts = {"shape": [str(list(ref.shape)) for ref in rows], "dtype": [ref.dtype for ref in rows]}
        made.append(
            Table(
                data_type=data_type,
                step=step,
                names=[ref.name for ref in rows],
                vpp_stages=[ref.vpp_stage for ref in rows],
                micro_steps=[micro or 0 for micro in micro_steps] if micro_steps[0] is not None else None,
                ops=list(ops),
                values=values[members],
                text={op: texts[op] for op in TEXT_OPS if op in ops},
            )
        )
    return made


def tag(ref: TensorRef, rank: int) -> str:
    """How the API and the alerts call a tensor.

    Example:
        >>> tag(TensorRef("actv", "fc1.input", 0, 2, 0, (0,), (), "torch.float32"), 1)
        '0:fc1.input:2/rank1/actv'
    """
    micro = "" if ref.micro_step is None else f":{ref.micro_step}"
    return f"{ref.vpp_stage}:{ref.name}{micro}/rank{rank}/{ref.data_type}"
