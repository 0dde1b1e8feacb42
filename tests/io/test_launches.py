"""Run directories of several launches in one output directory are told apart."""

import json
from pathlib import Path

import pytest

from msmon_io import launches, newest_run_dirs


def make(output_dir: Path, stamp: str, ranks: range | list[int], world_size: int | None, start_time: str = "") -> None:
    """What ranks leave that begin one second after another."""
    for number, rank in enumerate(ranks):
        run_dir = output_dir / f"{stamp[:-2]}{int(stamp[-2:]) + number:02d}-rank{rank}-{rank:08x}"
        run_dir.mkdir(parents=True)
        if world_size is not None:
            info = {"world_size": world_size, "start_time": start_time or "2026-02-30T"}
            (run_dir / "run.json").write_text(json.dumps(info))


def found(output_dir: Path) -> list[str]:
    return [str(launch) for launch in launches(output_dir)]


def test_a_smaller_launch_after_a_larger_one(tmp_path: Path) -> None:
    make(tmp_path, "Mar01_10-00-00", range(8), 8)
    make(tmp_path, "Mar01_10-03-00", range(4), 4)
    assert found(tmp_path) == ["Mar01_10-00-00 (ranks 0 to 7 of 8)", "Mar01_10-03-00 (ranks 0 to 3 of 4)"]
    assert {rank: path.name[:14] for rank, path in newest_run_dirs(tmp_path).items()} == {
        rank: f"Mar01_10-03-0{rank}" for rank in range(4)
    }
    assert all(launch.is_whole for launch in launches(tmp_path))


def test_world_sizes_alone_tell(tmp_path: Path) -> None:
    """No rank is there twice, and the pause is short."""
    make(tmp_path, "Mar01_10-00-00", range(4, 8), 8)
    make(tmp_path, "Mar01_10-03-00", range(4), 4)
    assert found(tmp_path) == ["Mar01_10-00-00 (ranks 4 to 7 of 8)", "Mar01_10-03-00 (ranks 0 to 3 of 4)"]


@pytest.mark.parametrize("world_size", [4, None])
def test_fewer_ranks_of_as_many(tmp_path: Path, world_size: int | None) -> None:
    """Nothing but time tells that ranks 2 and 3 are of the first launch; a rank that is there twice says where."""
    make(tmp_path, "Mar01_10-00-00", range(4), world_size)
    make(tmp_path, "Mar01_10-03-00", range(2), world_size)
    of = " of 4" if world_size else ""
    assert found(tmp_path) == [f"Mar01_10-00-00 (ranks 0 to 3{of})", f"Mar01_10-03-00 (ranks 0, 1{of})"]
    assert launches(tmp_path)[0].is_whole is (world_size is not None)
    assert not launches(tmp_path)[1].is_whole


def test_a_rank_that_began_again_alone(tmp_path: Path) -> None:
    make(tmp_path, "Mar01_10-00-00", range(3), 3)
    make(tmp_path, "Mar01_10-05-00", [1], 3)
    assert found(tmp_path) == ["Mar01_10-00-00 (ranks 0 to 2 of 3)", "Mar01_10-05-00 (rank 1 of 3)"]


def test_ranks_that_began_far_apart(tmp_path: Path) -> None:
    make(tmp_path, "Mar01_10-00-00", [11], 12)
    make(tmp_path, "Mar02_10-00-00", [0], 12)
    make(tmp_path, "Mar02_10-25-00", [3], 12)
    assert found(tmp_path) == ["Mar01_10-00-00 (rank 11 of 12)", "Mar02_10-00-00 (ranks 0, 3 of 12)"]


def test_a_rank_without_run_json_belongs_to_those_beside_it(tmp_path: Path) -> None:
    make(tmp_path, "Mar01_10-00-00", [0, 1], 4)
    make(tmp_path, "Mar01_10-00-02", [2], None)
    make(tmp_path, "Mar01_10-00-03", [3], 4)
    make(tmp_path, "Mar01_11-00-00", [0, 1], 2)
    assert found(tmp_path) == ["Mar01_10-00-00 (ranks 0 to 3 of 4)", "Mar01_11-00-00 (ranks 0, 1 of 2)"]


def test_a_resumed_launch_goes_on_in_the_old_directories(tmp_path: Path) -> None:
    """Ranks 0 and 1 append; ranks 2 and 3 are new, and so are their directories. `run.json` is the last launch's."""
    make(tmp_path, "Mar01_10-00-00", [0, 1], 4, "2026-03-05T08:00:00+01:00")
    make(tmp_path, "Mar03_10-00-00", [0, 1], 2, "2026-03-03T10:00:00+01:00")
    make(tmp_path, "Mar05_08-00-00", [2, 3], 4, "2026-03-05T08:00:02+01:00")
    assert found(tmp_path) == ["Mar03_10-00-00 (ranks 0, 1 of 2)", "Mar01_10-00-00 (ranks 0 to 3 of 4)"]


def test_a_second_configuration_in_the_same_moment(tmp_path: Path) -> None:
    """Rank 1 is a second late, so that the stamps of both configurations interleave."""
    for rank in (0, 1):
        for number in (0, 1):
            (tmp_path / f"Mar01_10-00-0{rank + number}-rank{rank}-{number}").mkdir()
    assert {rank: path.name[-1] for rank, path in newest_run_dirs(tmp_path).items()} == {0: "1", 1: "1"}


def test_across_new_year(tmp_path: Path) -> None:
    make(tmp_path, "Dec31_23-59-58", [0], 1)
    make(tmp_path, "Jan01_00-10-00", [0], 1)
    assert newest_run_dirs(tmp_path)[0].name.startswith("Jan01")
    assert launches(tmp_path / "Jan01_00-10-00-rank0-00000000") == []


@pytest.mark.parametrize("text", ["", "[" * 5000, "[]", '{"world_size": "8", "start_time": 7}', "\xff"])
def test_damaged_run_json(tmp_path: Path, text: str) -> None:
    make(tmp_path, "Mar01_10-00-00", [0, 1], 2)
    (next(tmp_path.glob("*rank1*")) / "run.json").write_text(text, encoding="latin-1")
    assert found(tmp_path) == ["Mar01_10-00-00 (ranks 0, 1 of 2)"]


def test_two_in_one_second(tmp_path: Path) -> None:
    """Directories are named by seconds; `run.json` has more."""
    for name, fraction in (("aaaaaaaa", "900"), ("bbbbbbbb", "100")):
        folder = tmp_path / f"Dec01_10-00-00-rank0-{name}"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"world_size": 1, "start_time": f"2026-12-01T10:00:00.{fraction}"}))
    assert newest_run_dirs(tmp_path)[0].name.endswith("aaaaaaaa")
