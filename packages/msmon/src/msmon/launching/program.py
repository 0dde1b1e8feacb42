"""In a program that `msmon run` started: who is told when the program imports a framework or a trainer."""

from __future__ import annotations

import json
import os
from importlib import import_module
from types import ModuleType
from typing import Any

from msmon.launching.imports import when_imported

CONFIG = "MSMON_CONFIG"
"""The environment variable: the path of a configuration file, or what would stand in one."""

_TOLD = {
    "torch": "msmon.launching.torch_trainings",
    "mindspore": "msmon.launching.mindspore_trainings",
    "transformers.trainer": "msmon.launching.trainers",
}
"""Imported module of the program -> module here whose `imported(module)` is called then."""


def begin() -> None:
    """Wait for the program's imports, where there is a configuration."""
    if os.environ.get(CONFIG):
        for name, teller in _TOLD.items():
            when_imported(name, lambda module, teller=teller: _tell(teller, module))  # type: ignore[misc]


def configuration() -> dict[str, Any]:
    """The arguments of `TrainerMon` that say what to watch; none: the program was not started by `msmon run`."""
    text = os.environ.get(CONFIG, "").strip()
    if not text:
        return {}
    return {"config": json.loads(text)} if text.startswith("{") else {"config_file_path": text}


def _tell(teller: str, module: ModuleType) -> None:
    try:
        import_module(teller).imported(module)
    except Exception as error:
        from msmon.launching.words import say

        say(f"nothing is watched, the program goes on: {type(error).__name__}: {error}")
