"""The upper part of a report: what was monitored, what is missing, and the first anomalies."""

from __future__ import annotations

from collections.abc import Mapping

from msmon.reading.anomalies import Anomalies, Anomaly
from msmon.reading.coverage import RunCoverage, read_coverage
from msmon.reading.index import Index
from msmon.reading.model_order import layers_of
from msmon.reading.page import Panel, link
from msmon.reading.run import Run
from msmon.reading.statistics import preferred
from msmon_io import ranges

#: Rows of a table; the rest is counted.
_ROWS = 200


def report_panels(run: Run, indices: Mapping[str, Index], anomalies: Anomalies) -> list[Panel]:
    """The panels in their order."""
    panels = [_first_panel(run, anomalies, indices), _run_panel(run, indices)]
    coverage = _coverage_panel(run)
    # What was asked for and is not there at all comes first.
    panels.insert(0 if coverage.lead == "lead" else 2, coverage)
    if anomalies.total:
        panels.append(_anomaly_panel(anomalies, indices))
    if run.notes:
        panels.append(Panel(title="Notes on reading", id="notes", text=run.notes[:50]))
    return panels


def _run_panel(run: Run, indices: Mapping[str, Index]) -> Panel:
    info = run.info
    facts = [
        ("Data types", "; ".join(f"{name} ({len(index.tensors()[0]):,} tensors)" for name, index in indices.items()))
    ]
    steps = sorted({int(step) for index in indices.values() for step in (index.steps[0], index.steps[-1])})
    if steps:
        count = len({int(step) for index in indices.values() for step in index.steps})
        facts.append(("Steps", f"{steps[0]:,} to {steps[-1]:,}, {count:,} of them recorded"))
    facts.append(("Ranks", _ranks(run)))
    framework = " ".join(str(info[key]) for key in ("framework", "framework_version") if info.get(key))
    for name, value in (
        ("Framework", framework),
        ("Engine", info.get("engine")),
        ("Statistics", ", ".join(dict.fromkeys(stat for index in indices.values() for stat in index.stats))),
        ("Began", info.get("start_time")),
        ("msmon", info.get("msmon")),
    ):
        if value:
            facts.append((name, str(value)))
    if info.get("gradients_unscaled") is False:
        facts.append(("Gradients", "still multiplied by the loss scale, which could not be read"))
    return Panel(title="The run", id="run", facts=facts)


def _ranks(run: Run) -> str:
    world = run.info.get("world_size")
    text = ranges(list(run.ranks))
    stages = {rank.pp_stage for rank in run.ranks.values()}
    if isinstance(world, int) and world > len(run.ranks):
        text += f" ({len(run.ranks)} of {world})"
    return text + (f", {len(stages)} pipeline stages" if len(stages) > 1 else "")


def _coverage_panel(run: Run) -> Panel:
    coverage = read_coverage(run)
    if not coverage.ranks:
        return Panel(
            title="Coverage", id="coverage", text=["No rank left a coverage.json, so what is missing is not known."]
        )
    text = [f"No {data_type}: {reason}." for data_type, reason in coverage.without_rows.items()]
    expected, seen = (sum(counts.values()) for counts in (coverage.expected, coverage.seen))
    text.append(f"Expected {expected:,} tensors over all data types and ranks, saw {seen:,}.")
    if coverage.kinds:
        text.append(f"Counted apart: {', '.join(f'{count:,} {kind}' for kind, count in coverage.kinds.items())}.")
    if coverage.switched_off:
        text.append(f"Switched off: {', '.join(coverage.switched_off)}.")
    if coverage.ranks < len(run.ranks):
        text.append(f"Only {coverage.ranks} of {len(run.ranks)} ranks left a coverage.json.")
    if coverage.skipped_steps:
        skipped = coverage.skipped_steps
        text.append(f"The loss scaler skipped {len(skipped)} steps: {ranges(list(skipped)[:30])}.")
    text += coverage.notes[:20]
    rows: list[tuple[object, ...]] = [(*entry, ranks) for entry, ranks in coverage.missing.items()]
    rows += [(*entry, f"{reason} (apart)", ranks) for (_, *entry, reason), ranks in coverage.apart.items()]
    if len(rows) > _ROWS:
        text.append(f"The table has {_ROWS} of {len(rows):,} tensors without rows.")
    good = not (coverage.missing or coverage.without_rows or coverage.switched_off)
    return Panel(
        title=_coverage_title(coverage),
        id="coverage",
        text=text,
        lead="lead" if coverage.without_rows else "lead good" if good else "",
        columns=("data type", "tensor", "reason", "ranks") if rows else (),
        rows=rows[:_ROWS],
        open=bool(coverage.without_rows) or len(rows) <= 8,
    )


def _coverage_title(coverage: RunCoverage) -> str:
    if coverage.without_rows:
        return f"Coverage: no {', '.join(coverage.without_rows)}"
    if coverage.missing:
        return f"Coverage: {len(coverage.missing):,} missing"
    return "Coverage: a part was switched off" if coverage.switched_off else "Coverage: complete"


def _first_panel(run: Run, anomalies: Anomalies, indices: Mapping[str, Index]) -> Panel:
    if not anomalies.total:
        rules = run.info.get("config", {}).get("alert") if isinstance(run.info.get("config"), Mapping) else None
        none = "No anomaly was recorded." + ("" if rules else " The configuration has no alert rules with `dump`.")
        return Panel(title="Anomalies: none", id="anomalies", text=[none], lead="lead good")
    first = anomalies.first[0]
    text = [
        f"First: step {first.step}, {first.phase}, rank {first.rank}: {first.tensor.label()} ({first.data_type}"
        + (f", {', '.join(first.stats)}" if first.stats else "")
        + ")."
    ]
    text += _spread_sentences(anomalies)
    return Panel(
        title=f"Anomalies: {anomalies.total:,}, the first at step {first.step}", id="anomalies", text=text, lead="lead"
    )


def _spread_sentences(anomalies: Anomalies) -> list[str]:
    """How the fault went on: through the layers in the first step, then over steps and ranks."""
    first = anomalies.first[0]
    same_step = [anomaly for anomaly in anomalies.first if anomaly.step == first.step]
    layers = dict(zip([a.tensor for a in same_step], layers_of([a.tensor for a in same_step]), strict=True))
    path: dict[tuple[str, str], None] = {}
    for anomaly in same_step:
        path.setdefault((anomaly.phase, layers[anomaly.tensor]))
    by_phase: dict[str, list[str]] = {}
    for phase, layer in path:
        by_phase.setdefault(phase, []).append(layer)
    sentences = [
        f"In step {first.step} it went through: "
        + "; ".join(
            f"{phase}: {' → '.join(names[:12])}{' → …' if len(names) > 12 else ''}" for phase, names in by_phase.items()
        )
        + "."
    ]
    growth = [
        f"step {s.step}: {s.tensors:,} tensors on {len(s.ranks)} rank{'s'[: len(s.ranks) != 1]}"
        for s in anomalies.spread[:6]
    ]
    more = len(anomalies.spread) - 6
    sentences.append("Anomalous tensors: " + ", ".join(growth) + (f", and {more:,} more steps." if more > 0 else "."))
    return sentences


def _anomaly_panel(anomalies: Anomalies, indices: Mapping[str, Index]) -> Panel:
    shown = anomalies.first[:_ROWS]
    title = f"The first {len(shown)} of {anomalies.total:,} anomalies, in the order of what happened"
    return Panel(
        title=title if len(shown) < anomalies.total else "All anomalies, in the order of what happened",
        id="anomaly-table",
        text=["A click shows the tensor in the heat map."],
        columns=Anomaly.COLUMNS,
        rows=[a.cells() for a in shown],
        links=[_link(a, indices) for a in shown],
    )


def _link(anomaly: Anomaly, indices: Mapping[str, Index]) -> Mapping[str, object] | None:
    index = indices.get(anomaly.data_type)
    if index is None:
        return None
    stat = next((stat for stat in anomaly.stats if stat in index.stats), preferred(index.stats))
    return link(anomaly.data_type, anomaly.tensor, anomaly.step, stat)
