"""The same model and data on one device and in parallel: what the ranks have together is what the one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import numpy as np

from msmon.reading.diff import Difference, DiffResult, diff_runs
from msmon.reading.run import Run, open_run
from msmon.verifying.reduction_causes import factor_name
from msmon.verifying.report import Outcome, Report, Violation

NAME = "single"
TITLE = "What the ranks have together is what one device has"

#: Statistics that grow by a factor as their tensor does.
_PROPORTIONAL = ("norm", "rms", "absmax", "mean", "max", "min", "std")
_SAME_FACTOR = 0.01
_ROWS = 20


def compare_with_single(
    single: str | Path,
    parallel: str | Path,
    *,
    baselines: Sequence[str | Path] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Compare a run with one of the same model and data on one device, as `msmon diff` does.

    Args:
        single: the run on one device.
        parallel: the run on several.
        baselines: repetitions of `single`, which say how much differs by rounding alone.

    Raises:
        UnusableRun: a run cannot be read, or they have nothing in common.
    """
    result = diff_runs(single, parallel, baselines=baselines, progress=progress)
    run = open_run(parallel)
    violations = [_violation(one, run) for one in result.first[:_ROWS]]
    guess = _factor(result, run)
    if violations and guess:
        violations[0] = attrs.evolve(violations[0], guess=guess)
    one_sided = [f"only run {one.only_in} has {one.what} ({one.data_type})" for one in result.one_sided[:_ROWS]]
    outcome = Outcome(
        invariant=NAME,
        title=TITLE,
        comparisons=result.compared_values,
        how="merged statistics in the order of execution"
        + (", within what the repetitions differ by" if baselines else ", within a thousandth"),
        violations=violations,
        notes=[*result.notes, *one_sided],
    )
    return Report(run=str(run.directory), ranks=tuple(run.ranks), steps=result.steps, outcomes=[outcome])


def _violation(one: Difference, run: Run) -> Violation:
    return Violation(
        step=one.step,
        data_type=one.data_type,
        tensor=one.tensor.label(),
        micro_step=one.micro_step,
        ranks=tuple(run.ranks) if one.rank is None else (one.rank,),
        stat=one.stat,
        values={"in parallel": f"{one.b:.9g}", "on one device": f"{one.a:.9g}"},
    )


def _factor(result: DiffResult, run: Run) -> str:
    """What all that differs at the first step has in common."""
    first = [one for one in result.first if one.stat in _PROPORTIONAL and one.a and np.isfinite([one.a, one.b]).all()]
    gradients = [one.b / one.a for one in first if one.data_type.startswith("grad")]
    if not gradients:
        return ""
    middle = float(np.median(gradients))
    if not all(abs(ratio - middle) <= _SAME_FACTOR * abs(middle) for ratio in gradients):
        return ""
    ranks, steps = (int(run.info.get(key) or 1) for key in ("world_size", "grad_acc_steps"))
    name = factor_name(middle, _SAME_FACTOR * middle, ranks, steps)
    return f"gradients are {middle:.4g} times those on one device" + (f": looks like {name}" if name else "")
