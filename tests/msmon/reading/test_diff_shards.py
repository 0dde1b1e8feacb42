"""Runs whose ranks hold shards: a comparison is as exact as merging, since both read the stored partials."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from msmon.merging import merge_ranks
from msmon.reading import UnusableRun
from msmon.reading.diff import DiffResult, diff_runs
from msmon.reading.run import open_run
from msmon.reading.summary import summarize

from .files import write_sharded

# Two halves around +1000 and -1000: in each the change drowns in the digits, in the mean of both it is all there is.
HALVES = np.outer([1.0, -1.0], 1000 + np.linspace(-1, 1, 8)).ravel()
BEFORE, AFTER = HALVES + 1e-5, HALVES + 3e-5
TOLERANCE = {"rtol": 0.0, "atol": 1e-6}


def steps(second: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{"a.weight": HALVES + 1.0, "b.weight": BEFORE}, {"a.weight": HALVES + 1.0, "b.weight": second}]


def first_of(result: DiffResult) -> tuple[int, str, str]:
    first = result.first[0]
    return first.step, first.tensor.name, first.stat


@pytest.mark.parametrize("cuts", [[0, 8, 16], [0, 3, 8, 16]], ids=["the same ranks", "other ranks"])
def test_a_difference_that_only_the_partials_tell(tmp_path: Path, cuts: list[int]) -> None:
    a = write_sharded(tmp_path / "a", [0, 8, 16], steps(BEFORE), ops=["mean"])
    b = write_sharded(tmp_path / "b", cuts, steps(AFTER), ops=["mean"])
    direct = diff_runs(a, b, **TOLERANCE)
    assert first_of(direct) == (1, "b.weight", "mean")
    assert direct.compared_values == (2 * 2 * 2 if len(cuts) == 3 else 2 * 2)
    assert {one.tensor.name for one in direct.worst} == {"b.weight"}
    for run in (a, b):
        assert not merge_ranks(run).from_digits
    merged = diff_runs(a / "merged", b / "merged", **TOLERANCE)
    assert first_of(merged) == first_of(direct)
    assert merged.first[0].a == pytest.approx(1e-5)
    assert merged.first[0].b == pytest.approx(3e-5)
    if len(cuts) > 3:
        assert (direct.first[0].a, direct.first[0].b) == pytest.approx((1e-5, 3e-5), rel=1e-6)
    # The digits of the shards, three decimals, tell nothing of it, or something else.
    for run in (a, b):
        for stored in run.glob("*/partials"):
            shutil.rmtree(stored)
    digits = diff_runs(a, b, **TOLERANCE)
    assert not digits.first or first_of(digits) != first_of(direct)


def test_digits_and_partials_of_the_same_ranks_are_not_compared_with_each_other(tmp_path: Path) -> None:
    """The runs are the same; one was copied without the partials, and what its digits lack is no difference."""
    noise = np.random.default_rng(0).normal(1000, 1, 16)
    for name in ("a", "b"):
        write_sharded(tmp_path / name, [0, 8, 16], [{"w": noise}], ops=["mean", "max"], partials=name == "a")
    assert diff_runs(tmp_path / "a", tmp_path / "b", rtol=0, atol=0).onset is None


@pytest.mark.parametrize("cuts", [[0, 8, 16], [0, 3, 8, 16]], ids=["the same ranks", "other ranks"])
def test_a_store(tmp_path: Path, cuts: list[int]) -> None:
    """Parquet has all digits, but without the means no standard deviation of the whole follows from those of shards."""
    a = write_sharded(tmp_path / "a", [0, 16], steps(BEFORE), ops=["std", "norm"], parquet=True)
    b = write_sharded(tmp_path / "b", cuts, steps(AFTER * np.linspace(1, 1.02, 16)), ops=["std", "norm"], parquet=True)
    assert not list(b.glob("*/*.csv"))
    result = diff_runs(a, b)
    assert {(one.tensor.name, one.stat) for one in result.worst} == {("b.weight", "norm")}
    report = merge_ranks(b)
    assert (report.rows, report.sharded, report.from_digits) == (4, 4, 0)
    (merged,) = diff_runs(a, b / "merged").worst
    assert (merged.a, merged.b) == pytest.approx((result.worst[0].a, result.worst[0].b), abs=1e-3)


def test_partials_alone_are_a_run(tmp_path: Path) -> None:
    """As with the format `tensorboard`, whose files cannot be read back."""
    a = write_sharded(tmp_path / "a", [0, 8, 16], steps(BEFORE), ops=["mean", "norm"])
    b = write_sharded(tmp_path / "b", [0, 3, 8, 16], steps(AFTER), ops=["mean", "norm"])
    with_digits = diff_runs(a, b, **TOLERANCE)
    for path in b.glob("*/*.csv"):
        path.unlink()
    assert diff_runs(a, b, **TOLERANCE).worst == with_digits.worst
    (shown,) = summarize(b).types
    assert (shown.tensors, shown.steps, shown.ranks) == (2, (0, 1, 2), 3)
    report = merge_ranks(b)
    assert (report.rows, report.from_digits) == (4, 0)
    assert open_run(report.run_dirs[0].parent).stats("grad_reduced") == ("mean", "norm")


def test_damaged_partials_leave_the_digits(tmp_path: Path) -> None:
    a = write_sharded(tmp_path / "a", [0, 8, 16], steps(BEFORE), ops=["mean"])
    b = write_sharded(tmp_path / "b", [0, 3, 8, 16], steps(AFTER), ops=["mean"])
    for path in b.glob("*-rank0-*/partials/*"):
        path.write_bytes(b"PK")
    result = diff_runs(a, b, atol=1e-2)
    assert result.equal
    assert sum("is damaged" in note for note in result.notes) == 1


def test_a_shard_that_only_a_replica_wrote(tmp_path: Path) -> None:
    """Rank 1 ended a step earlier; rank 2 holds the same shard and went on."""
    whole = write_sharded(tmp_path / "a", [0, 16], steps(AFTER), ops=["norm", "mean"])
    ranks = write_sharded(tmp_path / "b", [0, 8, 16], steps(AFTER), ops=["norm", "mean"])
    (own,) = ranks.glob("*-rank1-*")
    shutil.copytree(own, ranks / "Nov29_10-00-00-rank2-00000002")
    for path in own.glob("*.csv"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    for path in own.glob("partials/*1*"):
        path.unlink()
    assert merge_ranks(ranks).incomplete == {}
    result = diff_runs(whole, ranks, rtol=1e-12)
    assert result.equal
    assert result.compared_values == 2 * 2 * 2


def test_a_launch_of_more_ranks_is_not_mixed_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three ranks, then two, which hold other shards of the same tensors."""
    from msmon.cli import main

    write_sharded(tmp_path / "out", [0, 3, 8, 16], steps(BEFORE), ops=["mean"])
    for path in (tmp_path / "out").iterdir():
        path.rename(path.with_name(path.name.replace("Nov29_10", "Nov29_09")))
    write_sharded(tmp_path / "out", [0, 8, 16], steps(AFTER), ops=["mean"])
    assert main(["merge", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "rank 2" not in printed.out
    assert "the newest is read, Nov29_10-00-00 (ranks 0, 1 of 2), and not Nov29_09-00-00" in printed.err
    (merged,) = open_run(tmp_path / "out" / "merged").ranks.values()
    assert merged.info["merged_from"] == [0, 1]
    # The older one by its stamp.
    assert main(["merge", str(tmp_path / "out" / "Nov29_09-00-00"), "-o", str(tmp_path / "older")]) == 0
    assert open_run(tmp_path / "older").info["merged_from"] == [0, 1, 2]
    assert diff_runs(tmp_path / "out", tmp_path / "older", atol=1e-4).equal


def test_a_rank_that_began_again_alone_needs_a_word(tmp_path: Path) -> None:
    output = write_sharded(tmp_path / "out", [0, 8, 16], steps(BEFORE), ops=["mean"])
    (own,) = output.glob("*-rank1-*")
    shutil.copytree(own, output / "Nov29_11-00-00-rank1-00000009")
    with pytest.raises(UnusableRun, match=r"has not all ranks.*say which is meant, .*Nov29_11-00-00 or .*10-00-00$"):
        merge_ranks(output)
    assert merge_ranks(output / "Nov29_10-00-00").incomplete == {}
    assert merge_ranks(output / "Nov29_11-00-00", tmp_path / "alone").incomplete
