"""From the sufficient statistics of a step to tables of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from msmon_hooks import ADAM_HISTOGRAM, DATA_TYPES, TensorRef
from msmon_io import TEXT_OPS, Table
from msmon_stats import OPS, finalize, merge


@frozen(kw_only=True, eq=False)
class Group:
    """Rows with the same columns."""

    refs: list[TensorRef]
    values: NDArray[np.float64]
    """`[rows, number columns]`."""
    ops: tuple[str, ...]
    """The columns, text columns included, in their order."""

    @property
    def stats(self) -> list[str]:
        """The number columns."""
        return [op for op in self.ops if op not in TEXT_OPS]


def _merge_rows(
    refs: Sequence[TensorRef], partials: NDArray[np.float64]
) -> tuple[list[TensorRef], NDArray[np.float64]]:
    """Refs that merge come back once, with the statistics of all of their tensors together."""
    joined: dict[tuple[str, int, str, int | None], tuple[TensorRef, NDArray[np.float64]]] = {}
    for ref, row in zip(refs, partials, strict=True):
        first = joined.get(ref.key)
        joined[ref.key] = (ref, row) if first is None else (first[0], merge(first[1], row))
    return [ref for ref, _ in joined.values()], np.array([row for _, row in joined.values()])


@frozen(kw_only=True, eq=False)
class StepRows:
    """What a step recorded, sorted by what the numbers are."""

    groups: list[Group]
    """Statistics of tensors, then one group for each kind of L2 feature."""
    partials: NDArray[np.float64]
    """The sufficient statistics that the first group was made of, `[rows, 8]`."""
    left_out: list[tuple[TensorRef, str]]
    """What has no row, and why."""
    histograms: list[TensorRef]
    """Parameters whose moments were made into histograms."""
    histogram_handles: NDArray[np.intp]


def step_rows(
    refs: Sequence[TensorRef], handles: NDArray[np.intp], matrix: NDArray[np.float64], ops: Sequence[str]
) -> StepRows:
    """The rows of a step.

    Args:
        refs: what was recorded.
        handles: a row of `matrix` for each, -1 where there is none.
        matrix: what the transfer brought, float64 `[n, 8]`.
        ops: the columns of statistics, text columns included, in their order.
    """
    members: dict[str, list[int]] = {}
    for index, ref in enumerate(refs):
        data_type = ref.data_type
        own = data_type == ADAM_HISTOGRAM or DATA_TYPES[data_type].columns
        members.setdefault(data_type if own else "", []).append(index)
    plain = np.array(members.get("", []), np.intp)
    count = np.zeros(len(plain))
    readable = handles[plain] >= 0
    count[readable] = matrix[handles[plain[readable]], 0]
    kept = plain[count > 0]
    left_out = [
        (refs[index], "type not supported" if handles[index] < 0 else "empty") for index in plain[count <= 0].tolist()
    ]
    kept_refs, partials = [refs[index] for index in kept.tolist()], matrix[handles[kept]]
    if any(ref.merges for ref in kept_refs):
        kept_refs, partials = _merge_rows(kept_refs, partials)
    groups = [Group(refs=kept_refs, values=finalize(partials, number_ops(ops)), ops=tuple(ops))]
    for name, rows in members.items():
        columns = DATA_TYPES[name].columns if name in DATA_TYPES else ()
        if columns:
            numbers = matrix[handles[rows]][:, : len(columns)]
            groups.append(Group(refs=[refs[index] for index in rows], values=numbers, ops=columns))
    drawn = members.get(ADAM_HISTOGRAM, [])
    return StepRows(
        groups=groups,
        partials=partials,
        left_out=left_out,
        histograms=[refs[index] for index in drawn],
        histogram_handles=handles[drawn],
    )


def number_ops(ops: Sequence[str]) -> list[str]:
    """The columns that hold numbers."""
    return [op for op in ops if op in OPS]


def tables(step: int, group: Group) -> list[Table]:
    """One table per data type, its rows in the documented order."""
    refs, values, ops = group.refs, group.values, group.ops
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
