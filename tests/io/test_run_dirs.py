"""Run directories: made, found for a resumed training, sorted across new year."""

import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from msmon_io import create_run_dir, find_run_dir, run_dirs
from msmon_io.run_dirs import parse_stamp, run_dirs_between

NEW_YEAR = ("Dec31_23-59-58-rank0-00000000", "Dec31_23-59-59-rank0-11111111", "Jan01_00-00-01-rank0-22222222")


def test_a_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old_umask = os.umask(0o077)
    try:
        first, second = create_run_dir("a/b", 3), create_run_dir("a/b", 3)
    finally:
        os.umask(old_umask)
    assert first != second
    assert first.is_absolute()
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d-rank3-[0-9a-f]{8}", first.name)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a/b", first)} == {0o750}
    assert abs(parse_stamp(first.name[:14]) - datetime.now()).total_seconds() < 60
    (tmp_path / "x").write_text("")
    with pytest.raises(OSError, match="x"):
        create_run_dir("x", 0)


def test_sorted_across_new_year(tmp_path: Path) -> None:
    for name in (
        *NEW_YEAR,
        "Jan01_00-00-01-rank1-33333333",
        "Jul01_12-00-00-rank0-44444444",
        "other",
        "Feb30_00-00-00-rank0-5",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "Jan02_00-00-00-rank0-file").write_text("")
    seen_at = datetime(2027, 1, 2)
    names = [run.path.name for run in run_dirs(tmp_path, rank=0, before=seen_at)]
    assert names == ["Jul01_12-00-00-rank0-44444444", *NEW_YEAR]
    between = run_dirs_between(tmp_path, "Dec31_23-59-59", "Jan01_00-00-01")
    assert [run.path.name[-8:] for run in between] == ["11111111", "22222222", "33333333"]
    assert [run.time.year for run in between] == [2025, 2026, 2026] or datetime.now().year > 2026
    assert [run.path.name[-8:] for run in run_dirs_between(tmp_path, "Dec31_23-59-58", "Dec31_23-59-58")] == [
        "00000000"
    ]


def test_time_stamps() -> None:
    assert parse_stamp("Dec03_21-34-40", before=datetime(2026, 12, 3, 21, 34, 40)) == datetime(2026, 12, 3, 21, 34, 40)
    assert parse_stamp("Dec03_21-34-41", before=datetime(2026, 12, 3, 21, 34, 40)) == datetime(2025, 12, 3, 21, 34, 41)
    assert parse_stamp("Feb29_00-00-00", before=datetime(2027, 1, 1)) == datetime(2024, 2, 29)
    for bad in (
        "2026-12-03",
        "dec03_21-34-40",
        "Dec32_21-34-40",
        "Dec03_25-00-00",
        "Dec03_21:34:40",
        "",
        "Dec3_1-2-3",
        5,
    ):
        message = re.escape(f"append: {bad!r} is no time stamp; write it like the run directories do, 'Dec03_21-34-40'")
        with pytest.raises(ValueError, match=message):
            parse_stamp(bad, what="append")  # type: ignore[arg-type]


def test_a_resumed_training_finds_its_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in NEW_YEAR:
        (tmp_path / name).mkdir()
    (tmp_path / "Jan01_00-00-01-rank1-33333333").mkdir()
    leftover = tmp_path / NEW_YEAR[1] / ".grad_reduced_0-0.csv.0123abcd.tmp"
    leftover.write_text("half")
    assert find_run_dir(tmp_path, 0, "Dec31_23-59-59", "Dec31_23-59-59").name == NEW_YEAR[1]
    assert not leftover.exists()
    assert find_run_dir(tmp_path, 1, "Dec31_00-00-00", "Jan01_12-00-00").name == "Jan01_00-00-01-rank1-33333333"
    assert not caplog.records
    assert find_run_dir(tmp_path, 0, "Dec31_00-00-00", "Jan01_12-00-00").name == NEW_YEAR[2]
    assert "rank 0 has several run directories" in caplog.text
    assert "the newest is continued" in caplog.text
    caplog.clear()
    new = find_run_dir(tmp_path, 2, "Dec31_00-00-00", "Jan01_12-00-00")
    assert new.is_dir()
    assert "-rank2-" in new.name
    assert f"no run directory of rank 2 in {tmp_path} between Dec31_00-00-00 and Jan01_12-00-00" in caplog.text
    with pytest.raises(ValueError, match="time_end: 'now' is no time stamp"):
        find_run_dir(tmp_path, 0, "Dec31_00-00-00", "now")
    with pytest.raises(ValueError, match="is after time_end 'Dec31_00-00-00': the earlier time stamp comes first"):
        find_run_dir(tmp_path, 0, "Dec31_00-00-01", "Dec31_00-00-00")
    assert find_run_dir(tmp_path / "none", 0, "Dec31_00-00-00", "Dec31_00-00-00").is_dir()


def test_links_that_lead_out_are_no_run_directories(tmp_path: Path) -> None:
    output_dir, outside = tmp_path / "out", tmp_path / "outside"
    output_dir.mkdir()
    outside.mkdir()
    (output_dir / NEW_YEAR[0]).symlink_to(outside)
    (output_dir / NEW_YEAR[1]).mkdir()
    (output_dir / NEW_YEAR[2]).symlink_to(output_dir / NEW_YEAR[1])
    assert {run.path for run in run_dirs(output_dir)} == {output_dir / NEW_YEAR[1]}
    # The output directory itself may be a link: that is what the user chose.
    (tmp_path / "link").symlink_to(output_dir)
    assert len(run_dirs(tmp_path / "link")) == 2
