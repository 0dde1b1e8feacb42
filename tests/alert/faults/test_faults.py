"""One seed of the bench of injected faults; `make faults` runs more."""

import itertools
import json

import pytest
import torch

from .bench import run
from .faults import EXACT, FAULTS
from .scoring import Verdict, report
from .training import Case, train

SEED = 0


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Trains every case once; prints the table."""
    found = run([SEED], tmp_path_factory.mktemp("faults"))
    print("\n" + report(found))
    return found


def test_every_fault_was_injected(verdicts):
    assert {v.case.fault for v in verdicts} == {*FAULTS, ""}
    assert {v.world for v in verdicts} == {1, 2}


def test_nan_and_inf_are_found_at_once(verdicts):
    exact = [v for v in verdicts if v.case.fault in EXACT]
    assert len(exact) == 10
    missed = [v for v in exact if not (v.hit and v.step_error == 0)]
    assert not missed, report(missed)


def test_other_faults_are_found_within_two_steps(verdicts):
    others = [v for v in verdicts if v.case.fault in FAULTS and v.case.fault not in EXACT]
    assert len(others) == 40
    assert sum(v.hit for v in others) >= 0.9 * len(others), report(others)


def test_healthy_runs_are_quiet(verdicts):
    healthy = [v for v in verdicts if not v.case.fault]
    assert len(healthy) == 4
    assert not any(v.false_alarms for v in healthy), report(healthy)
    assert not any(v.false_alarms for v in verdicts), report(verdicts)


def test_the_bench_tells_a_miss_from_a_hit(verdicts):
    """Judged against another fault's answer, nothing is right."""
    for first, second in itertools.pairwise(verdicts):
        if not (first.answer and second.answer) or first.answer["step"] == second.answer["step"]:
            continue
        swapped = Verdict(first.case, first.world, second.answer, first.first, 0)
        assert not swapped.hit or abs(first.answer["step"] - second.answer["step"]) <= 2


def test_a_training_from_a_snapshot_is_the_same_as_one_from_the_first_step(tmp_path, monkeypatch):
    """The bench trains the steps before a fault once for all faults."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))  # is set anew by each training
    torch.set_num_threads(1)
    snapshots = train(Case("mlp", "", SEED), tmp_path / "healthy")
    found = []
    for name, given in (("whole", None), ("short", snapshots), ("again", snapshots)):
        train(Case("mlp", "corrupted_batch", SEED), tmp_path / name, snapshots=given)
        path = tmp_path / name / f"mlp-corrupted_batch-{SEED}" / "anomaly_detected" / "rank0" / "anomaly.json"
        found.append(json.loads(path.read_text()))
    whole, *shorter = found
    assert len(whole) > 10
    assert shorter == [whole, whole]
