"""Histories in a file."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from msmon_alert.files import replaced

_META = "meta"


def save_state(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a `Monitor.state_dict()` as one .npz file, at once as a whole or not at all.

    Raises:
        OSError: it cannot be written; what was there before still is.

    >>> import tempfile
    >>> from msmon_alert import AnomalyTurbulence, Monitor
    >>> before, after = Monitor([AnomalyTurbulence(1.0)]), Monitor([AnomalyTurbulence(1.0)])
    >>> before.observe(0, ["w"], ["norm"], [[1.0]])
    []
    >>> path = tempfile.mkdtemp() + "/histories.npz"
    >>> save_state(before.state_dict(), path)
    >>> after.load_state_dict(load_state(path))
    >>> after.observe(1, ["w"], ["norm"], [[9.0]])[0].history
    1.0
    """
    meta = {**state, "rules": [{"rule_name": rule["rule_name"]} for rule in state["rules"]]}
    arrays = {
        f"{number}/{name}": array
        for number, rule in enumerate(state["rules"])
        for name, array in rule["arrays"].items()
    }
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with replaced(Path(path)) as file:
        np.savez(file, **{_META: text, **arrays})


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save_state` wrote, for `Monitor.load_state_dict`.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is something else, or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            meta: dict[str, Any] = json.loads(file[_META].tobytes())
            for number, rule in enumerate(meta["rules"]):
                prefix = f"{number}/"
                names = [name for name in file.files if name.startswith(prefix)]
                rule["arrays"] = {name[len(prefix) :]: file[name] for name in names}
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{os.fspath(path)}: not a saved state of msmon_alert.Monitor ({error})") from error
    return meta
