"""A comparison as one page to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from msmon.reading.binning import to_float
from msmon.reading.diff.gathering import Gathered
from msmon.reading.diff.result import Difference, DiffResult
from msmon.reading.diff.rules import NameRules
from msmon.reading.diff.runs import diff_runs
from msmon.reading.index import Index, TensorKey
from msmon.reading.model_order import layer_sequence, layers_of, model_order
from msmon.reading.page import Page, Panel, TypeSeries, Written, link, write_page
from msmon.reading.run import open_run

_ROWS = 200


def write_diff_page(
    run_a: str | Path,
    run_b: str | Path,
    output: str | Path,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-8,
    rules: NameRules | None = None,
    baselines: Sequence[str | Path] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[DiffResult, Written]:
    """Compare two runs as `diff_runs` does, and write a self-contained page of where they differ.

    Raises:
        UnusableRun: a run cannot be read, or they have nothing in common.
        OSError: the page cannot be written.
    """
    gathered: list[Gathered] = []
    result = diff_runs(
        run_a,
        run_b,
        rtol=rtol,
        atol=atol,
        rules=rules,
        baselines=baselines,
        gather=gathered.append,
        progress=progress,
    )
    indices = {one.index.data_type: one.index for one in gathered}
    order = model_order(open_run(run_a), indices)
    verdict = "equal" if result.equal else "tensors on one side only"
    if result.first:
        verdict = f"first difference at step {result.first[0].step}"
    page = Page(
        kind="diff",
        title=f"msmon diff: {verdict}",
        subtitle=f"A: {Path(run_a).resolve()}   B: {Path(run_b).resolve()}",
        panels=_panels(result, indices),
        series=[_series(one, order, result) for one in gathered],
        lines=gathered[0].line_names,
        worst_label="Difference over the tolerance",
        mark_label="beyond the tolerance for the first time",
        first_type=result.first[0].data_type if result.first else None,
    )
    return result, write_page(Path(output), page)


def _series(one: Gathered, order: Mapping[TensorKey, int], result: DiffResult) -> TypeSeries:
    index = one.index
    keys, _ = index.tensors()
    layers = layers_of(keys)
    sequence = layer_sequence(keys, layers, order)
    excess = one.excess[:, sequence]
    number_of = {keys[at]: number for number, at in enumerate(sequence)}
    largest = np.nan_to_num(to_float(excess), nan=0.0, posinf=np.finfo(np.float32).max).max(axis=(0, 2))
    marks = [
        (number_of[d.tensor], int(np.searchsorted(index.steps, d.step)))
        for d in result.first
        if d.data_type == index.data_type
    ]
    return TypeSeries(
        data_type=index.data_type,
        stats=index.stats,
        steps=index.steps,
        bins=one.bins,
        tensors=[keys[at] for at in sequence],
        layers=[layers[at] for at in sequence],
        lines=one.lines[:, :, sequence],
        worst=excess,
        marks=marks,
        micro_steps=len({row.micro_step for row in index.rows}),
        interest=np.argsort(-largest, kind="stable"),
    )


def _panels(result: DiffResult, indices: Mapping[str, Index]) -> list[Panel]:
    panels = [_first_panel(result)]
    first, last, count = result.steps
    share = result.different_values / result.compared_values
    types = [f"{name} ({len(index.tensors()[0]):,} tensors)" for name, index in indices.items()]
    panels.append(
        Panel(
            title="What was compared",
            id="compared",
            facts=[
                ("Steps", f"{first:,} to {last:,}, {count:,} in both runs"),
                ("Data types", ", ".join(types)),
                ("Values", f"{result.compared_values:,}, of which {result.different_values:,} differ ({share:.2%})"),
            ],
            text=result.notes,
        )
    )
    if result.first:
        panels.append(
            _table(
                result.first, f"Tensors that differ at step {result.first[0].step}, in the order of execution", "first"
            )
        )
        panels.append(_table(result.worst, "Worst tensors", "worst"))
    if result.one_sided:
        panels.append(
            Panel(
                title=f"On one side only: {len(result.one_sided)}",
                id="one-sided",
                columns=("only in", "data type", "what"),
                rows=[(one.only_in, one.data_type, one.what) for one in result.one_sided[:_ROWS]],
                open=len(result.one_sided) < 10,
            )
        )
    return panels


def _first_panel(result: DiffResult) -> Panel:
    if not result.first:
        text = ["No value differs beyond the tolerance."]
    else:
        one = result.first[0]
        beyond = "which is no number in one of them."
        if math.isfinite(one.excess):
            beyond = f"{one.excess:.3g} times the tolerance."
        values = f"{one.stat} is {one.a:.6g} in A and {one.b:.6g} in B"
        text = [f"Step {one.step}: {one.tensor.label()} ({one.where()}). {values}, {beyond}"]
    if result.onset is not None and (not result.first or result.onset.place() != result.first[0].place()):
        one = result.onset
        text.append(
            f"Within the tolerance the runs differ from step {one.step}, {one.tensor.label()} ({one.where()}) on: "
            f"{one.stat} by {one.relative:.2g} of its value."
        )
    return Panel(
        title="First difference" if result.first else "Equal",
        id="first-difference",
        text=text,
        lead="lead" if result.first else "lead good",
    )


def _table(differences: Sequence[Difference], title: str, id: str) -> Panel:
    shown = differences[:_ROWS]
    return Panel(
        title=title + (f" ({len(shown)} of {len(differences):,})" if len(shown) < len(differences) else ""),
        id=f"{id}-table",
        columns=(*Difference.COLUMNS, "times the tolerance"),
        rows=[d.cells() for d in shown],
        links=[link(d.data_type, d.tensor, d.step, d.stat) for d in shown],
    )
