"""A monitored training in which calls inside the monitor raise at random, on each rank others."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import pkgutil
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from .prove import CONFIG, Trained, _fingerprint, make_monitor
from .workload import STEPS


def _faults() -> ModuleType:
    """The harness of the other tests; here it is no part of a package."""
    path = Path(__file__).parent.parent / "integration" / "faults.py"
    spec = importlib.util.spec_from_file_location("faults", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def points() -> dict[str, str]:
    """What the engines' sources of gradients answer: every public method of theirs."""
    import msmon_hooks.torch.grads as package

    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and name.endswith("Gradients"):
                for method, function in vars(kind).items():
                    if isinstance(function, FunctionType) and not method.startswith("_"):
                        found[f"{name}.{method}"] = f"{module.__name__}:{name}.{method}"
    return found


def trained(*, engine: str, output: str, seeds: list[int], **variant: Any) -> dict[str, Any]:
    """Losses and weights alone, and of one monitored training for each seed; with what raised, and what was logged."""
    build = importlib.import_module(f".{engine}", __package__).build
    faults = _faults()
    places = {**faults.POINTS, **points()}
    answer: dict[str, Any] = {"alone": _train(build(**variant)), "monitored": []}
    for seed in seeds:
        errors: list[str] = []
        handler = logging.Handler(logging.ERROR)
        handler.emit = lambda record, errors=errors: errors.append(record.getMessage())  # type: ignore[method-assign]
        loggers = [logging.getLogger(name) for name in ("msmon", "msmon_io")]
        for logger in loggers:
            logger.addHandler(handler)
        with pytest.MonkeyPatch.context() as patch:
            chance = faults.at_random(seed * 100 + torch.distributed.get_rank(), 0.001 * 10 ** (seed % 3))
            raising = faults.Faults(places, chance, patch)
            one = build(**variant)
            monitor = make_monitor(one, Path(output) / str(seed), **CONFIG, mg_direction=True)
            outcome = _train(one)
            monitor.close()
        for logger in loggers:
            logger.removeHandler(handler)
        answer["monitored"].append((outcome, raising.raised, errors))
    return answer


def _train(one: Trained) -> tuple[list[str], str]:
    return [one.step(number).hex() for number in range(STEPS)], _fingerprint(one)
