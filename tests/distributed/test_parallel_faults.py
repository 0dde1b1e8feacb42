"""The bench of parallel faults works: a healthy training and two kinds of those that `make parallel-faults` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .parallel_faults.bench import Case, cases, run_case
from .parallel_faults.engines import ENGINES
from .parallel_faults.kinds import KINDS
from .parallel_faults.scene import Truth
from .parallel_faults.scoring import Verdict, table


@pytest.mark.parametrize("kind", ["", "flipped bit in a weight", "one rank skips a reduction"])
def test_ddp(ranks, tmp_path, kind):
    verdict = run_case(ranks.run, Case(engine="ddp", kind=kind, seed=1), tmp_path)
    assert verdict.hit if kind else verdict.first is None, verdict.line()
    assert not list(Path(tmp_path).iterdir())


def test_cases():
    found = list(cases(list(ENGINES), list(KINDS), runs=1, healthy=1, first=5))
    assert len(KINDS) >= 15
    assert {one.kind for one in found} == {"", *KINDS}
    assert {one.engine for one in found} == set(ENGINES)
    assert {one.seed for one in found} == {5}


def test_table():
    """What is told of a healthy training is a false alarm; what is told before the fault has not found it."""
    from msmon.verifying import Violation

    def verdict(kind: str, step: int | None, minority: tuple[int, ...] = (1,)) -> Verdict:
        first = None
        if step is not None:
            first = Violation(
                step=step, data_type="param_origin", tensor="a", ranks=(0, 1), minority=minority, values={}
            )
        truth = Truth(step=4, tensors=("a",), ranks=(1,)) if kind else None
        return Verdict(engine="ddp", kind=kind, seed=0, truth=truth, first=first, ranks=minority if first else ())

    verdicts = [
        verdict("k", 4),
        verdict("k", 3),
        verdict("k", 5),
        verdict("k", 4, (0,)),
        verdict("k", None),
        verdict("", None),
        verdict("", 2),
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(verdicts).splitlines()]
    assert rows[2] == ["k", "ddp", "5", "3", "2", "4", "3", "1"]
    assert ["ddp", "2", "1"] in rows
