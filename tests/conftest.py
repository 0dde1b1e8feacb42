"""Shared fixtures: a folder for a run's files, and threads that leave room for other processes."""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "2")

_INSTALLED = {name for name in ("torch", "mindspore") if importlib.util.find_spec(name) is not None}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """torch and MindSpore have an environment each; a file belongs to that of MindSpore if its name says so.

    Where neither is installed, the tests of what needs no framework are named on the command line.
    """
    if collection_path.is_dir() or not collection_path.name.startswith("test_"):
        return None
    return True if ("mindspore" in collection_path.name) is not ({"mindspore"} == _INSTALLED) else None


@pytest.fixture
def output_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where monitors made in this test write."""
    path = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(path))
    return path


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Write a configuration file with these fields and return its path."""

    def write(**fields: object) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields))
        return path

    return write
