"""Copies of a model that is monitored, on each rank."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .prove import Trained, hooks_on, make_monitor


def _saved(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    assert b"msmon" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


def _pickled(thing: Any) -> Any:
    data = pickle.dumps(thing)
    assert b"msmon" not in data
    return pickle.loads(data)


WAYS: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": _pickled, "torch.save": _saved}


def copied(*, engine: str, output: str, **variant: Any) -> dict[str, dict[str, str]]:
    """For each way to copy the model: what happens without a monitor, and while one is attached.

    ``"refused: ..."``, or the hooks of msmon that the copy has.
    """
    trained: Trained = importlib.import_module(f".{engine}", __package__).build(**variant)
    trained.step(0)
    alone = {name: _outcome(way, trained) for name, way in WAYS.items()}
    monitor = make_monitor(trained, Path(output))
    trained.step(1)
    attached = hooks_on(trained)
    watched = {name: _outcome(way, trained) for name, way in WAYS.items()}
    assert hooks_on(trained) == attached, "copying has taken hooks off the original"
    trained.step(2)
    monitor.close()
    return {"alone": alone, "watched": watched}


def _outcome(way: Callable[[Any], Any], trained: Trained) -> str:
    try:
        model = way(trained.model)
    except Exception as error:
        return f"refused: {type(error).__name__}"
    hooks = [
        hook
        for module in model.modules()
        for registered in (module._forward_hooks, module._forward_pre_hooks)
        for hook in registered.values()
        if type(hook).__module__.startswith("msmon")
    ]
    patched = [
        name
        for module in model.modules()
        for name, value in vars(module).items()
        if getattr(type(value), "__module__", "").startswith("msmon")
    ]
    return f"copied with {len(hooks)} hooks and {patched}"
