"""A run in numbers, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import numpy as np

from msmon.reading.anomalies import Anomalies, read_anomalies
from msmon.reading.blocks import read_blocks
from msmon.reading.coverage import RunCoverage, read_coverage
from msmon.reading.index import Index, TensorKey, build_index
from msmon.reading.run import Run, open_run
from msmon.reading.statistics import preferred, worst_of

#: How many tensors of a data type are kept for the list of the largest.
_KEPT = 20
_BELOW_NAN = float(np.finfo(np.float64).max)


@attrs.frozen(kw_only=True)
class Peak:
    """The worst value of one tensor."""

    data_type: str
    tensor: TensorKey
    stat: str
    value: float
    step: int
    rank: int


@attrs.frozen(kw_only=True)
class TypeSummary:
    """One data type."""

    data_type: str
    tensors: int
    steps: tuple[int, int, int]
    """First, last, number."""
    ranks: int
    stats: tuple[str, ...]
    not_finite: int
    """Tensors with a NaN or an infinity in any statistic at any step."""
    peaks: Sequence[Peak]
    """Tensors with the worst values of the preferred statistic, the worst first: NaN, then infinity, then by size."""


@attrs.frozen(kw_only=True)
class Summary:
    """What `summarize` found."""

    run: Run
    types: Sequence[TypeSummary]
    anomalies: Anomalies
    coverage: RunCoverage


def summarize(path: str | Path, *, progress: Callable[[str], None] = lambda text: None) -> Summary:
    """Read a run and sum it up.

    Raises:
        UnusableRun: there is nothing to read.

    Example:
        >>> summarize("monitor_output").types[0].steps  # doctest: +SKIP
        (0, 99, 100)
    """
    run = open_run(path)
    anomalies = read_anomalies(run.directory, run.notes, run.anomaly_ranks)
    types = []
    for data_type in run.data_types:
        progress(data_type)
        index = build_index(run, data_type)
        if index.rows and index.stats:
            types.append(_type_summary(run, index))
    return Summary(run=run, types=types, anomalies=anomalies, coverage=read_coverage(run))


def _type_summary(run: Run, index: Index) -> TypeSummary:
    stat = preferred(index.stats)
    at = index.stats.index(stat)
    keys, tensor_of = index.tensors()
    rows = len(index.rows)
    sign = -1.0 if worst_of(stat) == "smallest" else 1.0
    best, value = np.full(rows, -np.inf), np.full(rows, np.nan)
    place = np.zeros((rows, 2), dtype=np.int64)
    strange = np.zeros(rows, dtype=np.bool_)
    for rank in run.ranks.values():
        for block in read_blocks(rank, index):
            strange |= (~np.isfinite(block.values) & block.present).any(axis=(0, 1))
            values = block.values[at] if worst_of(stat) != "magnitude" else np.abs(block.values[at])
            # NaN is the worst of all, and a missing value the best.
            worth = np.where(np.isnan(values), np.inf, np.minimum(sign * values, _BELOW_NAN))
            worth[~block.present[at]] = -np.inf
            step = worth.argmax(axis=0)
            worst = np.take_along_axis(worth, step[None], axis=0)[0]
            better = worst > best
            best[better] = worst[better]
            value[better] = np.take_along_axis(block.values[at], step[None], axis=0)[0][better]
            place[better] = np.stack([step + block.first, np.full(rows, rank.rank)], axis=1)[better]
    # Of several NaN the earliest is the one to look at.
    order = [row for row in np.lexsort((place[:, 0], -best)) if best[row] > -np.inf]
    first: dict[int, int] = {}
    for row in order:
        first.setdefault(int(tensor_of[row]), int(row))
    peaks = [
        Peak(
            data_type=index.data_type,
            tensor=keys[tensor],
            stat=stat,
            value=float(value[row]),
            step=int(index.steps[place[row, 0]]),
            rank=int(place[row, 1]),
        )
        for tensor, row in list(first.items())[:_KEPT]
    ]
    return TypeSummary(
        data_type=index.data_type,
        tensors=len(keys),
        steps=(int(index.steps[0]), int(index.steps[-1]), len(index.steps)),
        ranks=sum(index.data_type in rank.files for rank in run.ranks.values()),
        stats=index.stats,
        not_finite=len(np.unique(tensor_of[strange])),
        peaks=peaks,
    )
