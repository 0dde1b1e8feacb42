"""Who is told of an import."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from msmon.launching.imports import when_imported


def test_told_once_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the program first asks whether there is such a module, as trainers do for each framework."""
    (tmp_path / "imported_here.py").write_text("made = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[bool] = []
    when_imported("imported_here", lambda module: told.append(module.made))
    assert importlib.util.find_spec("imported_here") is not None
    assert told == []
    module = importlib.import_module("imported_here")
    assert told == [True]
    assert type(module.__spec__.loader).__module__ != "msmon.launching.imports"
    importlib.reload(module)
    when_imported("imported_here", lambda module: told.append(module.made))
    assert told == [True, True]
