"""Checks a run beside the training, from its files, as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msmon.reading.errors import UnusableRun
from msmon.reading.run import RankRun, Run, open_run
from msmon.verifying.report import Report, Violation
from msmon.verifying.verification import Verification

#: Between two looks at the files.
SECONDS = 2.0


def follow(
    path: str | Path, *, wait: Callable[[float], object] | None = None
) -> Iterator[tuple[Report, list[Violation]]]:
    """Check a run again and again, until it is closed.

    A run is closed when the `run.json` of all ranks has an `end_time`, which the monitor writes last. Of a job that was
    killed nothing says so: then this goes on until the caller stops.

    Args:
        path: as for `verify`; of several launches that which is the newest at first.
        wait: called with seconds, between two looks; None: `time.sleep`.

    Yields:
        After each look that saw new steps, and once at the end: what was found so far, and what is new in it.
    """
    verification: Verification | None = None
    told: set[tuple[str, str, str]] = set()
    while True:
        run = _open(path)
        if run is not None and run.launch is not None:
            path = run.directory / run.launch.stamp
        closed = run is not None and all(rank.info.get("end_time") for rank in run.ranks.values())
        if run is not None and (closed or _all_there(run)):
            verification = Verification(run) if verification is None else verification
            before = verification.steps
            # The newest step of a rank may not have all its rows yet.
            until = None if closed else min(_last_step(rank) for rank in run.ranks.values()) - 1
            verification.look(run, until=until)
            if closed or verification.steps != before:
                report = verification.report()
                new = []
                for outcome in report.outcomes:
                    for one in outcome.violations:
                        key = outcome.invariant, one.data_type, one.tensor
                        if key not in told:
                            told.add(key)
                            new.append(one)
                yield report, new
        if closed:
            return
        (wait or time.sleep)(SECONDS)


def _open(path: str | Path) -> Run | None:
    """The run, or None where there is nothing of it yet."""
    try:
        return open_run(path)
    except UnusableRun:
        if not Path(path).is_dir():
            raise
        return None


def _all_there(run: Run) -> bool:
    """Whether every rank that has a monitor has written something."""
    config = run.info.get("config")
    named = config.get("module_ranks") if isinstance(config, Mapping) else None
    expected = len(named) if isinstance(named, list) and named else run.info.get("world_size")
    return not isinstance(expected, int) or len(run.ranks) >= expected


def _last_step(rank: RankRun) -> int:
    last = -1
    for files in rank.files.values():
        table = files[-1].load(("step",))
        if table.num_rows:
            last = max(last, int(table["step"].to_numpy().max()))
    return last
