"""A run as one page to look at."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from msmon.reading.anomalies import Anomalies, read_anomalies
from msmon.reading.binning import Bits, bin_blocks, make_bins, to_float, worst_over
from msmon.reading.blocks import read_blocks
from msmon.reading.index import Index, Ints, TensorKey, build_index
from msmon.reading.model_order import layer_sequence, layers_of, model_order
from msmon.reading.page import PAGE_LIMIT, Page, TypeSeries, Written, write_page
from msmon.reading.report_panels import report_panels
from msmon.reading.run import Run, open_run
from msmon.reading.statistics import preferred

#: More bins than this fit neither a screen nor, for a large run, the memory.
_MOST_BINS = 1024
#: Values kept in memory while a page is made: 256 MiB.
_MOST_VALUES = 64 << 20

#: The data types that a page shows first, where a run has them.
_FIRST = ("grad_reduced", "grad_unreduced", "actv", "actv_grad")


def write_report(
    run: str | Path,
    output: str | Path,
    *,
    tensors: str | None = None,
    limit: int = PAGE_LIMIT,
    progress: Callable[[str], None] = lambda text: None,
) -> Written:
    """Write a self-contained HTML page of a run.

    Args:
        run: an output directory with all ranks, or one run directory.
        output: the file to write.
        tensors: only tensors whose name contains this regular expression. Fewer tensors have finer curves.
        limit: bytes of the page; curves are thinned to keep it.
        progress: told what is being read.

    Returns:
        The size of the page and what was thinned.

    Raises:
        UnusableRun: there is nothing to read.
        re.error: `tensors` is no regular expression.
        OSError: the page cannot be written.

    Example:
        >>> write_report("monitor_output", "report.html")  # doctest: +SKIP
    """
    opened = open_run(run)
    pattern = re.compile(tensors or "")
    anomalies = read_anomalies(opened.directory, opened.notes, opened.anomaly_ranks)
    indices: dict[str, Index] = {}
    for data_type in opened.data_types:
        progress(f"names and steps of {data_type}")
        index = build_index(opened, data_type, rename=lambda key: key if pattern.search(key.name) else None)
        if index.rows and len(index.steps) and index.stats:
            indices[data_type] = index
    if not indices:
        what = f"no tensor has a name that contains {tensors!r}" if tensors else "its files hold no rows"
        opened.note(f"nothing to draw: {what}")
    order = model_order(opened, indices)
    rows = sum(len(index.stats) * len(index.tensors()[0]) for index in indices.values()) * len(opened.ranks)
    bins = max(min(_MOST_BINS, _MOST_VALUES // max(rows, 1)), 1)
    series = []
    for data_type, index in indices.items():
        progress(f"values of {data_type}")
        series.append(make_series(opened, index, order, anomalies, bins))
    first = next((one for one in _FIRST if one in indices), None)
    if anomalies.first and anomalies.first[0].data_type in indices:
        first = anomalies.first[0].data_type
    page = Page(
        kind="report",
        title=f"msmon report: {opened.directory.resolve().name}",
        subtitle=str(opened.directory.resolve()),
        panels=report_panels(opened, indices, anomalies),
        series=series,
        lines=[f"rank {rank}" for rank in opened.ranks],
        worst_label="Worst of all ranks" if len(opened.ranks) > 1 else "Rank " + str(next(iter(opened.ranks))),
        mark_label="anomaly",
        first_type=first,
    )
    progress("the page")
    return write_page(Path(output), page, limit=limit)


def make_series(run: Run, index: Index, order: dict[TensorKey, int], anomalies: Anomalies, limit: int) -> TypeSeries:
    keys, row_tensor = index.tensors()
    layers = layers_of(keys)
    sequence = layer_sequence(keys, layers, order)
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[sequence] = np.arange(len(keys))
    bins = make_bins(index.steps, limit)
    lines: Bits = np.stack(
        [
            bin_blocks(read_blocks(rank, index, multiple=bins.width), index.stats, bins, numbers[row_tensor], len(keys))
            for rank in run.ranks.values()
        ]
    )
    worst = worst_over(lines, index.stats)
    tensors = [keys[at] for at in sequence]
    number_of = {key: number for number, key in enumerate(tensors)}
    marks = [
        (number_of[key], int(np.searchsorted(index.steps, step)))
        for key, step in anomalies.marks.get(index.data_type, ())
        if key in number_of and index.steps[0] <= step <= index.steps[-1]
    ]
    return TypeSeries(
        data_type=index.data_type,
        stats=index.stats,
        steps=index.steps,
        bins=bins,
        tensors=tensors,
        layers=[layers[at] for at in sequence],
        lines=lines,
        worst=worst,
        marks=marks,
        micro_steps=len({row.micro_step for row in index.rows}),
        interest=_interest(worst[index.stats.index(preferred(index.stats))], [at for at, _ in marks]),
    )


def _interest(worst: Bits, marked: list[int]) -> Ints:
    """The tensors with anomalies or values that are no numbers first, then those that jump the most."""
    values = np.abs(to_float(worst).astype(np.float64))
    finite = np.isfinite(values) & (values > 0)
    logs = np.where(finite, np.log(values, where=finite, out=np.zeros_like(values)), np.nan)
    count = finite.sum(axis=1)
    some = count > 0
    jump = np.zeros(len(values))
    jump[some] = np.nanmax(logs[some], axis=1) - np.nanmedian(logs[some], axis=1)
    strange = (worst == np.uint32(0x7FC00000)) | np.isinf(values)
    jump[strange.any(axis=1)] = np.inf
    jump[np.array(sorted(set(marked)), dtype=np.int64)] = np.inf
    return np.argsort(-jump, kind="stable")
