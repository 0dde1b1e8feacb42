"""Who is held to be equal to whom: groups of several dimensions, parts, tied weights, fingerprints."""

from __future__ import annotations

import numpy as np
import pytest

from msmon import verify
from msmon.reading.run import open_run
from msmon.verifying.equality import different
from msmon.verifying.expectations import Expectations
from msmon_hooks.layout import Layout, ranks_of_text, ranks_text

from .runs import write_run

ORIGIN = "param_origin"


def falling(rank: int, step: int) -> float:
    """Equal on all ranks."""
    return 2.0 - step / 10


def apart(rank: int, step: int) -> float:
    """Equal until rank 1 differs from step 3 on."""
    return falling(rank, step) + (rank == 1 and step >= 3) * 1e-9


def replicas(path):
    return verify(path).outcome("replicas")


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2], [1, 5, 9], [0, 1, 5], [7, 3], list(range(0, 4096, 8))])
def test_ranks_as_text(ranks):
    assert ranks_of_text(ranks_text(ranks)) == ranks
    assert len(ranks_text(ranks)) < 20


def test_majority(tmp_path):
    run = write_run(
        tmp_path, {ORIGIN: {"w": apart, "v": falling}}, lambda *_: Layout(equal_over={"data": range(3)}), ranks=3
    )
    (one,) = replicas(run).violations
    assert (one.step, one.tensor, one.ranks, one.minority) == (3, "w", (0, 1, 2), (1,))
    assert list(one.values) == ["rank 1", "ranks 0, 2"]
    assert "silent data corruption" in one.guess


def test_groups_of_two_dimensions(tmp_path):
    """Ranks 0 and 1 are one replica, split by tensor parallelism; 2 and 3 the other."""

    def layout(rank, name):
        data, tensor = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
        return Layout(equal_over={"data": data} if name == "split" else {"data": data, "tensor": tensor})

    def values(rank, step):
        return falling(rank, step) + rank % 2

    run = write_run(
        tmp_path,
        {ORIGIN: {"split": values, "norm": falling}},
        layout,
        ranks=4,
        shards=lambda rank, name: f"tp:{rank % 2}/2" if name == "split" else "",
    )
    outcome = replicas(run)
    assert outcome.state == "holds"
    # Two pairs of `split`, two of `norm`, and between these one.
    assert outcome.comparisons == 6 * (2 + 2 + 1)
    expected = Expectations(open_run(run))
    (split, norm) = expected.tensors
    assert expected.equal(split, ORIGIN) == ((0, 1, 0, 1), (0, 1, 0, 1))
    assert expected.equal(norm, ORIGIN) == ((0, 1, 0, 1), (0, 0, 0, 0))


def test_shards_are_no_replicas(tmp_path):
    layout = Layout(equal_over={"data": [0, 1]})
    run = write_run(
        tmp_path, {ORIGIN: {"w": lambda r, s: r + 1.0}}, lambda *_: layout, shards=lambda r, n: f"{r}:{r + 1}"
    )
    outcome = replicas(run)
    assert outcome.state == "not checked"
    assert outcome.reason.startswith("no two ranks recorded the same part of a tensor")


def test_what_is_computed_on_each_rank_may_round_otherwise(tmp_path):
    layout = Layout(equal_over={"tensor": [0, 1]})
    rounded = write_run(tmp_path / "a", {ORIGIN: {"norm": apart}}, lambda *_: layout)
    assert replicas(rounded).state == "holds"
    parted = write_run(tmp_path / "b", {ORIGIN: {"norm": lambda r, s: 1 + (r and s == 4) * 0.1}}, lambda *_: layout)
    (one,) = replicas(parted).violations
    assert (one.step, one.minority) == (4, ())
    assert "came apart" in one.guess


def test_tied_weights(tmp_path):
    def layout(rank, name):
        if name != ("embedding" if rank == 0 else "head"):
            return None
        return Layout(equal_over={"data": [rank], "embedding": [0, 1]}, tied="embedding")

    values = {ORIGIN: {"embedding": falling, "head": apart}}
    (one,) = replicas(write_run(tmp_path / "a", values, layout, stages=[0, 1])).violations
    assert (one.step, one.tensor, one.ranks) == (3, "embedding, tied to pp1/0:head", (0, 1))
    values = {ORIGIN: {"embedding": falling, "head": falling}}
    outcome = replicas(write_run(tmp_path / "b", values, layout, stages=[0, 1]))
    assert (outcome.state, outcome.comparisons) == ("holds", 6)


def test_fingerprints_come_before_statistics(tmp_path):
    layout = Layout(equal_over={"data": [0, 1]})
    values = {ORIGIN: {"w": lambda r, s: f"{s + (r and s == 2):016x}"}}
    outcome = replicas(write_run(tmp_path, values, lambda *_: layout))
    assert outcome.how == "fingerprints (every bit)"
    (one,) = outcome.violations
    assert (one.step, one.stat) == (2, "fingerprint")
    assert dict(one.values) == {"rank 0": f"{2:016x}", "rank 1": f"{3:016x}"}


def test_nan_is_equal_to_nan(tmp_path):
    layout = Layout(equal_over={"data": [0, 1]})
    assert replicas(write_run(tmp_path, {ORIGIN: {"w": lambda r, s: float("nan")}}, lambda *_: layout)).state == "holds"


def test_order_of_summation():
    """Threads or devices that add up in another order change the last bits of sums, and nothing else."""
    largest = np.array([2.0, 2.0, 2.0])
    a = {"norm": np.array([1.0, 1.0, 1.0]), "max": largest}
    b = {"norm": np.array([1 + 2e-16, 1 + 1e-12, 1.0]), "max": largest + np.array([0, 0, 4e-16])}
    assert different(a, b).tolist() == [False, True, True]


def test_inputs_of_tensor_parallel_ranks(tmp_path):
    layout = Layout(equal_over={"tensor": [0, 1]})
    values = {
        "actv": {".input": lambda r, s: f"{s + r * (s >= 4):016x}"},
        ORIGIN: {"w": falling},
    }
    run = write_run(tmp_path, values, lambda rank, name: layout)
    outcome = verify(run).outcome("data")
    (one,) = outcome.violations
    assert (one.step, one.tensor, one.micro_step) == (4, ".input", 0)
    assert "different inputs" in one.guess


def test_stuck_loader(tmp_path):
    layout = Layout(equal_over={"data": [0, 1]})
    values = {
        "actv": {".input": lambda r, s: f"{min(s, 3) * 10 + r:016x}"},
        ORIGIN: {"w": falling},
    }
    outcome = verify(write_run(tmp_path, values, lambda *_: layout, steps=8)).outcome("data")
    (one,) = outcome.violations
    assert (one.step, one.minority) == (4, (0, 1))
    assert "stuck" in one.guess


def test_the_end_of_an_epoch(tmp_path):
    """Samplers repeat examples at the end, so that two ranks may have the same for once."""
    layout = Layout(equal_over={"data": [0, 1]})
    values = {"actv": {"fc.output": lambda r, s: s + r * (s != 3) + 1.0}, ORIGIN: {"w": falling}}
    assert verify(write_run(tmp_path, values, lambda *_: layout)).outcome("data").state == "holds"


def weights(late):
    """Three tensors that fall by 1 a step on two ranks; `late(rank, step)`: by how much the first is behind."""
    names = ("a", "b", "c")
    before = {n: lambda r, s, n=n: 20.0 - s + late(r, s, n) for n in names}
    after = {n: lambda r, s, n=n: 20.0 - (s + 1) + late(r, s + 0.5, n) for n in names}
    return {
        ORIGIN: before,
        "param_updated": after,
        **{k: dict.fromkeys(names, one) for k in ("grad_reduced", "exp_avg")},
    }


def one(rank, step):
    return 1.0


def test_which_of_two_was_not_updated(tmp_path):
    values = weights(lambda r, s, n: float(n == "a" and r == 1 and s > 3))
    report = verify(write_run(tmp_path, values, lambda *_: Layout(equal_over={"data": [0, 1]})))
    first = report.outcome("replicas").violations[0]
    assert (first.step, first.data_type, first.tensor, first.minority) == (3, "param_updated", "a", (1,))


@pytest.mark.parametrize(("ranks", "broken"), [((1,), ["a", "b", "c"]), ((0, 1), [])])
def test_parts_of_one_rank_change_between_two_steps(tmp_path, ranks, broken):
    """Something was loaded on one rank alone; on all of them the program does it on purpose."""
    values = weights(lambda r, s, n: 0.5 * (r in ranks and s >= 3))
    layout = Layout(equal_over={"data": [0, 1]})
    run = write_run(tmp_path, values, lambda *_: layout, shards=lambda rank, name: f"{rank}:{rank + 1}")
    found = verify(run).outcome("untouched").violations
    assert [(v.step, v.tensor, v.minority) for v in found] == [(3, name, (1,)) for name in broken]
    assert all("loaded or written there only" in v.guess for v in found)
