"""From what a step recorded to rows. Steps are alike: what the rows are called and how they are ordered is worked out
once, and again where a step differs from the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from msmon.tables import number_ops, unfilled_tables
from msmon_hooks import ADAM_HISTOGRAM, DATA_TYPES, TensorRef
from msmon_io import FINGERPRINT, TEXT_OPS, Table
from msmon_stats import FIELDS, finalize, fingerprints, merge


@frozen(kw_only=True, eq=False)
class RowSet:
    """Rows with the same columns."""

    refs: tuple[TensorRef, ...]
    places: NDArray[np.intp]
    """Where each stands among all that was recorded."""
    ops: tuple[str, ...]
    """The columns, text columns included, in their order."""
    tables: list[tuple[NDArray[np.intp], Table]]
    """See `msmon.tables.unfilled_tables`."""

    @classmethod
    def of(cls, recorded: Sequence[TensorRef], places: Sequence[int], ops: Sequence[str]) -> RowSet:
        """The rows at these places."""
        refs = tuple(recorded[place] for place in places)
        return cls(refs=refs, places=np.array(places, np.intp), ops=tuple(ops), tables=unfilled_tables(refs, ops))

    @property
    def stats(self) -> list[str]:
        """The number columns."""
        return [op for op in self.ops if op not in TEXT_OPS]


@frozen(kw_only=True, eq=False)
class Layout:
    """What is the same in steps that are alike."""

    recorded: tuple[TensorRef, ...]
    """All that was recorded."""
    plain: NDArray[np.intp]
    """The places of what has statistics."""
    presence: NDArray[np.float64]
    """Of each of them: 1 where there is a row, 0 where the tensor is empty, -1 where its type is not supported."""
    statistics: RowSet
    repeats: list[tuple[int, int]]
    """(row of `statistics`, place) of what merges into a row that is there already."""
    features: list[RowSet]
    """One set for each kind of L2 feature."""
    left_out: list[tuple[TensorRef, str]]
    """What has no row, and why."""
    histograms: tuple[TensorRef, ...]
    """Parameters whose moments were made into histograms."""
    histogram_places: NDArray[np.intp]


@frozen(kw_only=True, eq=False)
class StepRows:
    """The rows of one step."""

    layout: Layout
    partials: NDArray[np.float64]
    """The sufficient statistics of `layout.statistics`, `[rows, 8]`."""
    row_sets: list[tuple[RowSet, NDArray[np.float64]]]
    """Statistics of tensors, then the L2 features, each with its values `[rows, number columns]`."""
    histogram_handles: NDArray[np.intp]
    fingerprints: list[str]
    """Those of `layout.statistics`, if they are wanted; empty where there is none, as of several tensors in one row."""

    def tables(self, step: int) -> list[Table]:
        """One table per data type, its rows in the documented order."""
        return [
            evolve(table, step=step, values=values[order], text=self._text(table, order))
            for row_set, values in self.row_sets
            for order, table in row_set.tables
        ]

    def _text(self, table: Table, order: NDArray[np.intp]) -> Mapping[str, Sequence[str]]:
        if FINGERPRINT not in table.text:
            return table.text
        return {**table.text, FINGERPRINT: [self.fingerprints[row] for row in order.tolist()]}


class RowReader:
    """Reads the rows of one step after the other.

    Args:
        ops: the columns of statistics, text columns included, in their order.
    """

    def __init__(self, ops: Sequence[str]) -> None:
        self._ops = tuple(ops)
        self._numbers = number_ops(ops)
        self._layout: Layout | None = None

    def read(self, recorded: tuple[TensorRef, ...], handles: NDArray[np.intp], matrix: NDArray[np.float64]) -> StepRows:
        """The rows of a step.

        Args:
            recorded: what was recorded.
            handles: a row of `matrix` for each, -1 where there is none.
            matrix: what the transfer brought, float64 `[n, 8]`, with fingerprints `[n, 10]`.
        """
        layout = self._layout
        same = layout is not None and layout.recorded == recorded
        plain = layout.plain if layout is not None and same else _plain(recorded)
        presence = np.full(len(plain), -1.0)
        readable = handles[plain] >= 0
        presence[readable] = np.sign(matrix[handles[plain[readable]], 0])
        if layout is None or not same or not np.array_equal(layout.presence, presence):
            layout = self._layout = _layout(recorded, plain, presence, self._ops)
        partials = matrix[handles[layout.statistics.places]]
        for row, place in layout.repeats:
            partials[row] = merge(partials[row], matrix[handles[place]])
        return StepRows(
            layout=layout,
            partials=np.ascontiguousarray(partials[:, : len(FIELDS)]),
            row_sets=[
                (layout.statistics, finalize(partials, self._numbers)),
                *((own, matrix[handles[own.places], : len(own.ops)]) for own in layout.features),
            ],
            histogram_handles=handles[layout.histogram_places],
            fingerprints=fingerprints(partials) if FINGERPRINT in self._ops else [],
        )


def _columns(data_type: str) -> tuple[str, ...]:
    """Of a kind of L2 feature."""
    return DATA_TYPES[data_type].columns if data_type in DATA_TYPES else ()


def _plain(recorded: Sequence[TensorRef]) -> NDArray[np.intp]:
    kinds = {ref.data_type for ref in recorded}
    own = {kind for kind in kinds if kind == ADAM_HISTOGRAM or _columns(kind)}
    return np.array([place for place, ref in enumerate(recorded) if ref.data_type not in own], np.intp)


def _layout(
    recorded: tuple[TensorRef, ...], plain: NDArray[np.intp], presence: NDArray[np.float64], ops: tuple[str, ...]
) -> Layout:
    rows: dict[tuple[str, int, str, int | None], int] = {}
    places: list[int] = []
    repeats = []
    for place in plain[presence > 0].tolist():
        row = rows.setdefault(recorded[place].key, len(places))
        if row == len(places):
            places.append(place)
        else:
            repeats.append((row, place))
    own: dict[str, list[int]] = {}
    for place, ref in enumerate(recorded):
        own.setdefault(ref.data_type, []).append(place)
    drawn = own.get(ADAM_HISTOGRAM, [])
    absent = zip(plain[presence <= 0].tolist(), presence[presence <= 0].tolist(), strict=True)
    return Layout(
        recorded=recorded,
        plain=plain,
        presence=presence,
        statistics=RowSet.of(recorded, places, ops),
        repeats=repeats,
        features=[RowSet.of(recorded, of, _columns(kind)) for kind, of in own.items() if _columns(kind)],
        left_out=[(recorded[place], "empty" if sign == 0 else "type not supported") for place, sign in absent],
        histograms=tuple(recorded[place] for place in drawn),
        histogram_places=np.array(drawn, np.intp),
    )
