"""JSON files: whole at any moment, in the output directory, with the right modes."""

import json
import os
from pathlib import Path

import pytest

from msmon_io import OutsideError, write_json


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.json"
    old_umask = os.umask(0o027)
    try:
        write_json(path, {"name": "模型 \ud800", "steps": [1, 2.5, None]}, root=tmp_path)
    finally:
        os.umask(old_umask)
    assert json.loads(path.read_text())["steps"] == [1, 2.5, None]
    assert path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
    with pytest.raises(TypeError):
        write_json(path, {"set": {1}})
    assert json.loads(path.read_text())["steps"] == [1, 2.5, None]
    assert os.listdir(path.parent) == ["run.json"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, list(range(10)))
    with path.open() as file:
        write_json(path, list(range(100_000)))
        assert json.load(file) == list(range(10))
    assert len(json.loads(path.read_text())) == 100_000


def test_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(OutsideError, match="nothing is written there"):
        write_json(root / "link" / "run.json", {}, root=root)
    with pytest.raises(OutsideError):
        write_json(root / ".." / "run.json", {}, root=root)
    (outside / "target.json").write_text("{}")
    (root / "run.json").symlink_to(outside / "target.json")
    write_json(root / "run.json", [1], root=root)
    assert (outside / "target.json").read_text() == "{}"
    assert not (root / "run.json").is_symlink()
