"""Trains every kind of fault on every engine that can have it, and healthy models; prints what `msmon verify` says."""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from msmon import verify

from ..launcher import RankError, Ranks
from .engines import ENGINES
from .kinds import KINDS
from .scene import Truth
from .scoring import Verdict, judge, table


@frozen(kw_only=True)
class Case:
    """One training."""

    engine: str
    kind: str
    seed: int


def cases(engines: Sequence[str], kinds: Sequence[str], *, runs: int, healthy: int, first: int) -> Iterator[Case]:
    """The healthy trainings of an engine, then its faults; engines that share processes follow each other."""
    for engine in sorted(engines, key=lambda one: (ENGINES[one].ranks, ENGINES[one].pool)):
        for seed in range(first, first + healthy):
            yield Case(engine=engine, kind="", seed=seed)
        for kind, seed in itertools.product(kinds, range(first, first + runs)):
            if engine in KINDS[kind].engines:
                yield Case(engine=engine, kind=kind, seed=seed)


def run_case(run: Callable[..., list[Any]], case: Case, folder: Path, *, keep: bool = False) -> Verdict:
    """Train, verify and judge.

    Args:
        run: calls a function on all ranks, see `launcher.Ranks.run`.
        case: the training.
        folder: for its files.
        keep: whether they stay.
    """
    output = folder / f"{case.engine} {case.kind or 'healthy'} {case.seed}".replace(" ", "_")
    arguments = {"engine": case.engine, "kind": case.kind, "seed": case.seed, "output": str(output)}
    # The first training imports the engine, on a machine that may be busy.
    answers = run("parallel_faults.training", "train", timeout=600, **arguments)
    truth = answers[0] and Truth(**answers[0])
    verdict = judge(case.engine, case.kind, case.seed, truth, verify(output))
    if not keep:
        shutil.rmtree(output)
    return verdict


def run_all(todo: Sequence[Case], folder: Path, *, keep: bool = False) -> Iterator[Verdict]:
    """The verdicts, one after the other."""
    for (size, _), group in itertools.groupby(todo, key=lambda one: (ENGINES[one.engine].ranks, _pool(one))):
        with Ranks(size) as ranks:
            for case in group:
                yield run_case(ranks.run, case, folder, keep=keep)


def _pool(case: Case) -> str:
    return ENGINES[case.engine].pool


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make parallel-faults", description=__doc__)
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="an engine (default: all)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="a kind of fault (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="trainings of each kind and engine (default: 3)")
    parser.add_argument("--healthy", type=int, default=20, help="healthy trainings of each engine (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--keep", type=Path, help="a folder where the runs stay")
    options = parser.parse_args()
    todo = list(
        cases(
            options.engine or list(ENGINES),
            options.kind or list(KINDS),
            runs=options.runs,
            healthy=options.healthy,
            first=options.seed,
        )
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `timeout` does: tell what is done
    begin, done = time.monotonic(), []
    # Ranks that are interrupted may still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        try:
            for verdict in run_all(todo, options.keep or Path(temporary), keep=options.keep is not None):
                done.append(verdict)
                print(f"{verdict.line()}", flush=True)
        except (KeyboardInterrupt, RankError) as error:
            print(f"stopped: {error or 'interrupted'}; what was done up to now:")
    print(f"\n{table(done)}\n{len(done)} of {len(todo)} trainings, {time.monotonic() - begin:.0f} s")
    return 0 if len(done) == len(todo) else 1


if __name__ == "__main__":
    sys.exit(main())
