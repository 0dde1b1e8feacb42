"""A verification as one page to look at: the invariants, and heat maps and curves of what is broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msmon.reading.anomalies import Anomalies
from msmon.reading.index import Index, TensorKey, build_index
from msmon.reading.model_order import model_order
from msmon.reading.page import Page, Panel, Written, link, write_page
from msmon.reading.report import make_series
from msmon.reading.run import Run, open_run
from msmon.verifying.report import Outcome, Report, Violation, ranks_in_words

_ROWS = 200
_BINS = 512
_COLUMNS = ("invariant", "result", "comparisons", "what was compared, or why not")
_BROKEN = ("step", "data type", "tensor", "micro-step", "ranks", "values", "looks like")


def write_verification(report: Report, output: str | Path) -> Written:
    """Write a self-contained page of what was found.

    Args:
        report: of `msmon.verify`; its run is read again, for the curves of what is broken.
        output: the file to write.

    Raises:
        OSError: the page cannot be written.

    Example:
        >>> write_verification(verify("monitor_output"), "verify.html")  # doctest: +SKIP
    """
    run = open_run(report.run)
    broken = dict.fromkeys(one.data_type for outcome in report.outcomes for one in outcome.violations)
    indices = {name: build_index(run, name) for name in run.data_types if name in broken}
    indices = {name: index for name, index in indices.items() if index.stats and len(index.steps)}
    keys = {(name, key.label()): key for name, index in indices.items() for key in index.tensors()[0]}
    marks: dict[str, set[tuple[TensorKey, int]]] = {name: set() for name in indices}
    for outcome in report.outcomes:
        for one in outcome.violations:
            key = keys.get((one.data_type, one.tensor))
            if key is not None:
                marks[one.data_type].add((key, one.step))
    shown = {name: frozenset(places) for name, places in marks.items()}
    anomalies = Anomalies(total=0, first=[], marks=shown, spread=[])
    order = model_order(run, indices)
    first = report.first
    verdict = "everything that was checked holds" if first is None else f"broken at step {first.step}"
    page = Page(
        kind="report",
        title=f"msmon verify: {verdict}",
        subtitle=report.run,
        panels=list(_panels(report, run, indices, keys)),
        series=[make_series(run, index, order, anomalies, _BINS) for index in indices.values()],
        lines=[f"rank {rank}" for rank in run.ranks],
        worst_label="Worst of all ranks",
        mark_label="broken",
        first_type=first.data_type if first is not None and first.data_type in indices else None,
    )
    return write_page(Path(output), page)


def _panels(
    report: Report, run: Run, indices: dict[str, Index], keys: dict[tuple[str, str], TensorKey]
) -> Iterator[Panel]:
    yield Panel(
        title="Verification",
        id="verification",
        lead="lead good" if report.holds else "lead",
        text=[_verdict(report)],
        facts=[("Ranks", ranks_in_words(report.ranks)), ("Steps", _steps(report))],
    )
    yield Panel(
        title="Invariants", id="invariants", columns=_COLUMNS, rows=[_row(outcome) for outcome in report.outcomes]
    )
    for outcome in report.outcomes:
        if outcome.violations:
            shown = outcome.violations[:_ROWS]
            yield Panel(
                title=f"Broken: {outcome.title} ({len(outcome.violations):,})",
                id=f"broken-{outcome.invariant}",
                columns=_BROKEN,
                rows=[_cells(one) for one in shown],
                links=[_link(one, indices, keys) for one in shown],
            )
    notes = [f"{outcome.invariant}: {note}" for outcome in report.outcomes for note in outcome.notes]
    if notes or run.notes:
        yield Panel(title="Notes", id="notes", text=[*notes, *run.notes][:_ROWS])


def _verdict(report: Report) -> str:
    one = report.first
    if one is None:
        return "Everything that was checked holds."
    return f"{one.place()}{f': {one.guess}' if one.guess else ''}"


def _steps(report: Report) -> str:
    return "none" if report.steps is None else "{:,} to {:,}, {:,} of them".format(*report.steps)


def _row(outcome: Outcome) -> tuple[object, ...]:
    more = "; ".join(part for part in (outcome.how, outcome.reason) if part)
    return outcome.title, outcome.state, f"{outcome.comparisons:,}" if outcome.comparisons else "", more


def _cells(one: Violation) -> tuple[object, ...]:
    values = f"{one.stat}: " + ", ".join(f"{whose} {value}" for whose, value in one.values.items())
    micro_step = "" if one.micro_step is None else one.micro_step
    ranks = ranks_in_words(one.minority or one.ranks)
    return one.step, one.data_type, one.tensor, micro_step, ranks, values, one.guess


def _link(
    one: Violation, indices: dict[str, Index], keys: dict[tuple[str, str], TensorKey]
) -> dict[str, object] | None:
    key = keys.get((one.data_type, one.tensor))
    if key is None:
        return None
    stats = indices[one.data_type].stats
    return link(one.data_type, key, one.step, one.stat if one.stat in stats else stats[0])
