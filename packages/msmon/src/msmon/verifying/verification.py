"""Checks a run of all its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from msmon.reading.index import Index, RowKey, build_index
from msmon.reading.run import Run, open_run
from msmon.verifying.against_single import compare_with_single
from msmon.verifying.collectives import Collectives
from msmon.verifying.different_data import DifferentData
from msmon.verifying.expectations import Expectations
from msmon.verifying.micro_batches import MicroBatches
from msmon.verifying.moments import Moments
from msmon.verifying.reductions import Reductions
from msmon.verifying.replicas import Replicas
from msmon.verifying.report import Report
from msmon.verifying.untouched import Untouched
from msmon.verifying.windows import verifiable, windows


def verify(
    run: str | Path,
    parallel: str | Path | None = None,
    *,
    baselines: Sequence[str | Path] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check what should hold of a parallel training: see `docs/verify.md` for the invariants.

    Args:
        run: the output directory of a run, with the run directories of all ranks.
        parallel: another run, of the same model and data on several ranks. Then `run` is the one on one device, and
            what the ranks have together is compared with it.
        baselines: repetitions of `run` with a perturbation, which say how much differs by rounding alone.
        progress: told what is being read.

    Returns:
        For each invariant whether it holds, where it is first broken, or why it was not checked.

    Raises:
        UnusableRun: there is nothing to read, or the two runs have nothing in common.

    Example:
        >>> verify("monitor_output").holds  # doctest: +SKIP
        True
    """
    if parallel is not None:
        return compare_with_single(run, parallel, baselines=baselines, progress=progress)
    opened = open_run(run)
    verification = Verification(opened)
    verification.look(opened, progress=progress)
    return verification.report()


class Verification:
    """The invariants of a run, of which more and more steps are seen."""

    def __init__(self, run: Run) -> None:
        digits = digits_of(run)
        expected = Expectations(run)
        self._run = run
        self._replicas = Replicas(expected)
        self._reductions = Reductions(expected, digits)
        self._micro_batches = MicroBatches(run, expected, digits)
        self._untouched = Untouched(run, expected, digits)
        self._moments = Moments(expected, digits)
        self._data = DifferentData(expected)
        self._collectives = Collectives(run)
        self._watching = (
            self._replicas,
            self._reductions,
            self._micro_batches,
            self._untouched,
            self._moments,
            self._data,
            self._collectives,
        )
        self._rows: dict[str, dict[RowKey, int]] = {}
        self.steps: tuple[int, int, int] | None = None
        """First, last and number of the steps that were seen."""

    def look(self, run: Run, *, until: int | None = None, progress: Callable[[str], None] = lambda text: None) -> None:
        """See the steps of a run after those that were seen.

        Args:
            run: the same run, which may have more steps by now.
            until: the last step to look at.
        """
        wanted = dict.fromkeys(data_type for one in self._watching for data_type in one.data_types)
        seen = None if self.steps is None else self.steps[1]
        indices: dict[str, Index] = {}
        for data_type in run.data_types:
            if data_type in wanted:
                progress(f"names and steps of {data_type}")
                rows = self._rows.setdefault(data_type, {})
                index = verifiable(run, build_index(run, data_type, rows=rows, after=seen))
                if index.rows and len(index.steps) and index.stats:
                    indices[data_type] = index
        if not indices:
            return
        steps = np.unique(np.concatenate([index.steps for index in indices.values()]))
        steps = steps if until is None else steps[steps <= until]
        indices = {data_type: attrs.evolve(index, steps=steps) for data_type, index in indices.items()}
        for window in windows(run, indices):
            progress(f"steps from {window.steps[0]} on")
            for one in self._watching:
                one.look(window)
            first, count = (int(window.steps[0]), 0) if self.steps is None else (self.steps[0], self.steps[2])
            self.steps = first, int(window.steps[-1]), count + len(window.steps)

    def report(self) -> Report:
        """What was found so far."""
        return Report(
            run=str(self._run.directory),
            ranks=tuple(self._run.ranks),
            steps=self.steps,
            outcomes=[
                self._replicas.outcome(
                    {
                        "param_origin": self._untouched.changes(),
                        "param_updated": self._untouched.stopped(),
                        "grad_reduced": self._reductions.blamed(),
                        **self._moments.changes(),
                    }
                ),
                self._reductions.reductions(),
                self._micro_batches.outcome(),
                self._untouched.outcome(),
                self._moments.outcome(),
                self._data.outcome(),
                self._reductions.clipping(),
                self._collectives.outcome(),
            ],
            notes=list(self._run.notes),
        )


def digits_of(run: Run) -> int | None:
    """To how many digits the run's statistics were rounded; None: they were not."""
    config = run.info.get("config")
    config = config if isinstance(config, Mapping) else {}
    written = config.get("format", "csv")
    if "parquet" in ([written] if isinstance(written, str) else written):
        return None
    digits = config.get("ndigits", 6)
    return digits if isinstance(digits, int) else 6
