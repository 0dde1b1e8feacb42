"""`msmon verify` on real trainings, healthy and with a fault put into one step."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import pytest

import msmon_io
from msmon import verify
from msmon.cli import main
from msmon.reading import UnusableRun
from msmon.verifying import Report, follow

from .verified import AT, FAULTS, PRINTS, RANK, STEPS, TENSOR, train_single

CHECKED = {
    "healthy": {"replicas", "reductions", "untouched", "moments", "data", "clipping"},
    "healthy fsdp2": {"reductions", "untouched", "moments", "data", "clipping"},
    "healthy accumulation": {"replicas", "reductions", "micro-batches", "untouched", "moments", "data", "clipping"},
    "healthy accumulation fsdp2": {"reductions", "micro-batches", "untouched", "moments", "data", "clipping"},
    "healthy clipping": {"replicas", "reductions", "untouched", "moments", "data", "clipping"},
    "healthy clipping fsdp2": {"reductions", "untouched", "moments", "data", "clipping"},
    "healthy by hand": {"replicas", "reductions", "untouched", "moments", "data", "clipping", "collectives"},
    "healthy frozen": {"replicas", "reductions", "untouched", "moments", "data", "clipping"},
}


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    """The output directory of each training: all are trained by the same two processes."""
    output = tmp_path_factory.mktemp("runs")
    ranks.run("verified", "train_all", output=str(output), faults=list(FAULTS), timeout=300)
    return lambda name: output / name.replace(" ", "_")


@pytest.fixture(scope="module")
def report(runs):
    return cache(lambda name: verify(runs(name)))


@pytest.mark.parametrize("name", CHECKED)
def test_healthy_runs(report, name):
    found = report(name)
    assert found.holds, found.first
    assert {one.invariant for one in found.outcomes if one.state == "holds"} == CHECKED[name]
    assert all(one.reason for one in found.outcomes if one.state == "not checked")
    assert found.steps == (0, 11, 12)


def test_flipped_bit(runs, report, capsys):
    """One mantissa bit of a weight on one rank: the step, the tensor and the rank, and the exit status."""
    first = report("flipped bit").first
    assert (first.step, first.data_type, first.tensor, first.minority) == (AT, "param_origin", TENSOR, (RANK,))
    assert "silent data corruption" in first.guess
    how = report("flipped bit").outcome("replicas").how
    assert how == ("fingerprints (every bit)" if PRINTS else "all recorded statistics")
    assert main(["verify", str(runs("flipped bit"))]) == 1
    assert f"step {AT}, param_origin, {TENSOR}, rank {RANK}" in capsys.readouterr().out
    assert main(["verify", str(runs("healthy"))]) == 0
    # Clipping and sums do not know of it.
    assert {one.invariant for one in report("flipped bit").outcomes if one.state == "broken"} == {
        "replicas",
        "untouched",
    }


def broken(report: Report, invariant: str):
    """The first violation of an invariant."""
    outcome = report.outcome(invariant)
    assert outcome.state == "broken"
    return outcome.violations[0]


def test_loaded_on_one_rank(report):
    one = broken(report("loaded on one rank"), "replicas")
    assert (one.step, one.data_type, one.minority) == (AT, "param_origin", (RANK,))
    assert "loaded or written there only" in one.guess


def test_other_start(report):
    one = broken(report("other start"), "replicas")
    assert (one.step, one.minority) == (0, ())
    assert "other seeds" in one.guess


def test_reduction_skipped_on_one_rank(report):
    one = broken(report("not reduced"), "replicas")
    assert (one.step, one.data_type, one.tensor, one.minority) == (AT, "grad_reduced", TENSOR, (RANK,))
    one = broken(report("not reduced"), "reductions")
    assert (one.step, one.tensor, one.minority) == (AT, TENSOR, (RANK,))
    assert one.guess == f"it is the gradient of rank {RANK} alone: it was not reduced"


def test_lost_rank(report):
    one = broken(report("lost rank"), "reductions")
    assert (one.step, one.tensor, one.minority) == (AT, TENSOR, (RANK,))
    assert one.guess == f"the gradient of rank {RANK} is missing from the sum"


@pytest.mark.parametrize("name", ["bucket divided twice", "bucket divided twice fsdp2"])
def test_bucket_divided_twice(report, name):
    assert len(report(name).outcome("reductions").violations) == 1
    one = broken(report(name), "reductions")
    assert (one.step, one.tensor) == (AT, TENSOR)
    assert "a division by the number of ranks (2) made twice" in one.guess


def test_all_divided_twice(report):
    one = broken(report("divided twice"), "reductions")
    assert (one.step, one.tensor) == (AT, "")
    assert "a division by the number of ranks (2) made twice" in one.guess


def test_missing_division_by_micro_steps(report):
    one = broken(report("not divided by micro-steps"), "reductions")
    assert (one.step, one.tensor) == (0, "")
    assert one.guess == "4 times what it should be: looks like a missing division by grad_acc_steps (4)"


def test_gradients_cleared_between_micro_steps(report):
    outcome = report("cleared between micro-steps").outcome("micro-batches")
    assert (outcome.state, "gradients of 1" in outcome.reason) == ("not checked", True)


def test_one_micro_batch_of_a_bias_lost(report):
    one = broken(report("micro-batch lost"), "micro-batches")
    assert (one.step, one.tensor, one.minority) == (AT, "fc2.bias", (RANK,))
    assert one.guess == "it is the gradient of the last micro-batch alone: the gradient was cleared between micro-steps"


def test_same_data(report):
    one = broken(report("same data"), "data")
    assert (one.step, one.ranks) == (AT, (0, 1))


def test_no_longer_updated(report):
    found = report("no longer updated").outcome("untouched").violations
    assert [(one.step, one.tensor, one.minority) for one in found] == [(AT, TENSOR, (0,)), (AT, TENSOR, (1,))]
    assert "stands still since" in found[0].guess


def test_clipping_by_the_local_norm(report):
    one = broken(report("local norm"), "clipping")
    assert one.step == AT
    assert "local norm" in one.guess
    assert set(one.values) == {"rank 0", "rank 1"}


def test_other_values_arrive_on_one_rank(report):
    one = broken(report("other arrival"), "collectives")
    assert (one.step, one.tensor, one.ranks) == (AT, "all_reduce.post_0", (0, 1))
    one = broken(report("other arrival"), "replicas")
    assert (one.step, one.data_type) == (AT, "param_updated")


def test_against_one_device(runs, tmp_path):
    single, again = tmp_path / "single", tmp_path / "again"
    train_single(single, ranks=2)
    train_single(again, ranks=2, perturbed=True)
    found = verify(single, runs("healthy"), baselines=[again])
    assert found.holds, found.first
    assert found.outcome("single").comparisons > 1000
    found = verify(single, runs("healthy fsdp2"), baselines=[again])
    assert found.holds, found.first
    assert main(["verify", str(single), str(runs("lost rank")), "--baseline", str(again)]) == 1
    one = broken(verify(single, runs("lost rank"), baselines=[again]), "single")
    assert (one.step, one.data_type, one.tensor) == (AT, "grad_reduced", TENSOR)


def test_wrong_factor_against_one_device(runs, tmp_path):
    single = tmp_path / "single"
    train_single(single, ranks=2, micro_steps=4)
    one = broken(verify(single, runs("not divided by micro-steps")), "single")
    assert one.step == 0
    assert one.guess == (
        "gradients are 4 times those on one device: looks like a missing division by grad_acc_steps (4)"
    )


def test_follow(runs_of_csv, tmp_path):
    """A run whose files come one after the other: what is newly broken is told once, at the step where it begins."""
    source, run = runs_of_csv / "not_reduced", tmp_path / "run"
    stages = iter([3, 8, 10, 12])

    def grow(seconds: float = 0.0) -> None:
        stage = next(stages)
        for directory in source.glob("*-rank*"):
            target = run / directory.name
            target.mkdir(parents=True, exist_ok=True)
            info = json.loads((directory / "run.json").read_text())
            (target / "run.json").write_text(json.dumps(info | ({} if stage == STEPS else {"end_time": None})))
            for path in directory.glob("*.csv"):
                if msmon_io.steps_of(path)[1] < stage:
                    shutil.copy(path, target)

    run.mkdir()
    # The newest step of a run that goes on is not looked at.
    seen = [(report.steps[1], [one.place() for one in new]) for report, new in follow(run, wait=grow)]
    assert [step for step, _ in seen] == [1, 6, 8, 11]
    places = [places for _, places in seen]
    assert places[:2] == [[], []]
    assert f"step {AT}, grad_reduced, {TENSOR}, rank {RANK}" in places[2]
    told = [place for some in places for place in some]
    assert sorted(told) == sorted(one.place() for outcome in verify(source).outcomes for one in outcome.violations)


def test_follow_without_a_run(tmp_path):
    with pytest.raises(UnusableRun, match="does not exist"):
        next(follow(tmp_path / "nowhere"))


@pytest.fixture(scope="module")
def runs_of_csv(ranks, tmp_path_factory):
    """CSV files of six digits, one a step."""
    output = tmp_path_factory.mktemp("csv")
    faults = ["healthy", "not reduced"]
    ranks.run("verified", "train_all", output=str(output), faults=faults, prints=False, format=["csv"], ndigits=6)
    return output


def test_rounded_statistics(runs_of_csv):
    """No false alarm, and what cannot be seen is said."""
    healthy = verify(runs_of_csv / "healthy")
    assert healthy.holds, healthy.first
    assert "rounded statistics hide small updates" in healthy.outcome("untouched").reason
    one = broken(verify(runs_of_csv / "not_reduced"), "reductions")
    assert (one.step, one.tensor, one.minority) == (AT, TENSOR, (RANK,))


def test_page(runs, report, tmp_path, capsys):
    page = tmp_path / "verify.html"
    assert main(["verify", str(runs("flipped bit")), "-o", str(page)]) == 1
    text = page.read_text()
    assert "<html" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert Path(page).stat().st_size < 1_000_000
    capsys.readouterr()
    assert main(["verify", str(runs("healthy")), "-o", str(page)]) == 0


def test_json(runs, capsys):
    assert main(["verify", str(runs("flipped bit")), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] is False
    replicas = document["outcomes"][0]
    assert (replicas["invariant"], replicas["state"]) == ("replicas", "broken")
    assert replicas["violations"][0]["minority"] == [RANK]


def test_without_layout_nothing_is_guessed(runs, tmp_path):
    """Runs of an older version do not say who shares what."""
    shutil.copytree(runs("flipped bit"), tmp_path / "run")
    for path in (tmp_path / "run").glob("*/run.json"):
        info = json.loads(path.read_text())
        for entry in info["tensors"]:
            del entry["layout"]
        path.write_text(json.dumps(info))
    outcome = verify(tmp_path / "run").outcome("replicas")
    assert outcome.state == "not checked"
    assert "no rank has recorded which ranks hold the same" in outcome.reason
