"""Compares two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np

from msmon.reading.diff.compare import Comparison, NoiseMeter, Places
from msmon.reading.diff.gathering import Gathered, Gatherer
from msmon.reading.diff.pairing import Pairs, SidedRun, pair_runs, paired_blocks
from msmon.reading.diff.result import Difference, DiffResult, OneSided
from msmon.reading.diff.rules import NameRules
from msmon.reading.diff.tolerance import Noise, Tolerance
from msmon.reading.errors import UnusableRun
from msmon.reading.index import Index, RowKey
from msmon.reading.run import execution_position, open_run
from msmon_alert.record import PHASE_NAMES, place_in_micro_step
from msmon_hooks import DATA_TYPES

#: Rows of one data type; a micro-step or a data type never has more.
_PLENTY = 1 << 40


def diff_runs(
    run_a: str | Path,
    run_b: str | Path,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-8,
    rules: NameRules | None = None,
    baselines: Sequence[str | Path] = (),
    gather: Callable[[Gathered], None] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DiffResult:
    """Compare everything that two runs have in common.

    Values count as different when abs(a - b) > atol + rtol * size (see `Tolerance`), or when one is NaN or another
    infinity.

    Args:
        run_a: output directory of the run to compare with.
        run_b: output directory of the other one.
        rules: give renamed tensors the same name.
        baselines: repetitions of run A. Three times the largest difference between A and a repetition, for the same
            tensor and statistic, is added to the tolerance.
        gather: is handed binned values of each data type, for a page.
        progress: told what is being compared.

    Raises:
        UnusableRun: a run cannot be read, or they have nothing in common.

    Example:
        >>> diff_runs("monitor_output", "monitor_output_2").equal  # doctest: +SKIP
        True
    """
    rules = rules or NameRules()
    a = SidedRun(run=open_run(run_a), side="a", rules=rules)
    b = SidedRun(run=open_run(run_b), side="b", rules=rules)
    repeats = [SidedRun(run=open_run(path), side="a", rules=rules) for path in baselines]
    pairs = pair_runs(a, b)
    notes = list(pairs.notes)
    if not any(index.data_type == "actv" for index in pairs.indices):
        notes.append(
            "no activations were compared: the first difference is where the backward pass or the update shows it, "
            "which may be another layer than the cause"
        )
    tolerance = Tolerance(rtol=rtol, atol=atol)
    compared: list[Comparison] = []
    for index in pairs.indices:
        noise = None
        if repeats:
            progress(f"noise of {index.data_type}")
            noise = _noise(a, repeats, index, notes)
        progress(f"values of {index.data_type}")
        gatherer = None if gather is None else Gatherer(a, b, index)
        for rank, blocks in paired_blocks(a, b, index, 1 if gatherer is None else gatherer.bins.width):
            comparison = Comparison(index, rank, tolerance, noise)
            for block_a, block_b in blocks:
                excess = comparison.add(block_a, block_b)
                if gatherer is not None:
                    gatherer.add(rank, block_a, block_b, excess)
            compared.append(comparison)
        if gather is not None and gatherer is not None:
            gather(gatherer.result())
    for one in (a, b):
        notes += [f"run {one.side.upper()}: {note}" for note in one.run.notes]
    if not sum(one.compared for one in compared):
        raise UnusableRun(f"{a.run.directory} and {b.run.directory} have no value in common")
    return _result(pairs, compared, notes)


def _noise(a: SidedRun, repeats: Sequence[SidedRun], index: Index, notes: list[str]) -> Noise:
    meter = NoiseMeter(index)
    for repeat in repeats:
        known = repeat.index(index.data_type)
        missing = len({row.tensor for row in index.rows} - {row.tensor for row in known.rows})
        if missing:
            notes.append(
                f"the baseline lacks {missing} tensors of {index.data_type}: only what is typical applies to them"
            )
        steps = np.intersect1d(index.steps, known.steps)
        if len(steps):
            for _, blocks in paired_blocks(a, repeat, attrs.evolve(index, steps=steps), 1):
                meter.add(blocks)
    return meter.noise()


def _result(pairs: Pairs, compared: Sequence[Comparison], notes: list[str]) -> DiffResult:
    steps = np.unique(np.concatenate([index.steps for index in pairs.indices]))
    one_sided = list(pairs.one_sided)
    for one in compared:
        one_sided += _sometimes(one)
    return DiffResult(
        first=_first(compared, lambda found: found.first),
        onset=next(iter(_first(compared, lambda found: found.onset)), None),
        worst=_worst(compared),
        one_sided=one_sided,
        compared_tensors=sum(len(index.tensors()[0]) for index in pairs.indices),
        compared_values=sum(one.compared for one in compared),
        different_values=sum(one.different for one in compared),
        steps=(int(steps[0]), int(steps[-1]), len(steps)),
        notes=list(dict.fromkeys(notes)),
    )


def _sometimes(one: Comparison) -> Iterator[OneSided]:
    """Tensors of which a run lacks the value at some of the common steps."""
    rows = list(one.index.rows)
    for name, only in zip("AB", one.only, strict=True):
        counts = only.max(axis=0)
        for row in np.flatnonzero(counts):
            where = f"{rows[row].tensor.label()} at {counts[row]} of the common steps"
            where += f", micro-step {rows[row].micro_step}" if rows[row].micro_step >= 0 else ""
            where += "" if one.rank is None else f", rank {one.rank}"
            yield OneSided(data_type=one.index.data_type, what=where, only_in=name)


def _first(compared: Sequence[Comparison], seen: Callable[[Comparison], Places]) -> list[Difference]:
    """What was seen at the earliest step of all, in the order of execution."""
    starts = [(int(seen(one).step.min()), one) for one in compared]
    earliest = min((int(one.index.steps[at]) for at, one in starts if at != Places.never), default=None)
    if earliest is None:
        return []
    last_micro = max(row.micro_step for one in compared for row in one.index.rows)
    found = []
    for at, one in starts:
        if at == Places.never or one.index.steps[at] != earliest:
            continue
        first, rows = seen(one), list(one.index.rows)
        here = first.step == at
        for row in np.flatnonzero(here.any(axis=0)).tolist():
            stat = int(np.argmax(np.where(here[:, row], first.excess[:, row], -1)))
            found.append((_place(one, rows[row], row, last_micro), _difference(one, first, rows[row], stat, row)))
    return [difference for _, difference in sorted(found, key=lambda pair: pair[0])]


def _place(one: Comparison, row: RowKey, number: int, last_micro: int) -> tuple[int, tuple[int, ...]]:
    """Sorts tensors of one step in the order of execution, which is the order of anomalies."""
    key = row.tensor
    known = DATA_TYPES.get(one.index.data_type)
    phase = PHASE_NAMES.index(known.phase) if known else len(PHASE_NAMES) - 1
    micro_step = row.micro_step if row.micro_step >= 0 else max(last_micro, 0)
    place = place_in_micro_step(
        phase,
        vpp_stage=key.vpp_stage,
        pp_stage=key.pp_stage,
        call_id=execution_position(one.index.data_type)[0] * _PLENTY + number,
        rank=one.rank or 0,
    )
    return (micro_step if phase else 0), place


def _worst(compared: Sequence[Comparison]) -> list[Difference]:
    worst: dict[tuple[str, object], Difference] = {}
    for one in compared:
        rows = list(one.index.rows)
        for row in np.flatnonzero((one.worst.excess > 1).any(axis=0)).tolist():
            difference = _difference(one, one.worst, rows[row], int(one.worst.excess[:, row].argmax()), row)
            place = (one.index.data_type, rows[row].tensor)
            if place not in worst or difference.excess > worst[place].excess:
                worst[place] = difference
    return sorted(worst.values(), key=lambda difference: -difference.excess)


def _difference(one: Comparison, places: Places, row: RowKey, stat: int, number: int) -> Difference:
    return Difference(
        data_type=one.index.data_type,
        tensor=row.tensor,
        micro_step=row.micro_step if row.micro_step >= 0 else None,
        rank=one.rank,
        step=int(one.index.steps[places.step[stat, number]]),
        stat=one.index.stats[stat],
        a=float(places.a[stat, number]),
        b=float(places.b[stat, number]),
        excess=float(places.excess[stat, number]),
    )
