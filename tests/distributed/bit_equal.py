"""A training with one monitor after the other, on each rank."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from .prove import Trained, _fingerprint, make_monitor
from .workload import STEPS


def outcomes(*, engine: str, output: str, monitors: dict[str, dict[str, Any]], **variant: Any) -> dict[str, Any]:
    """Losses and weights without a monitor, and with each.

    Args:
        engine: a module of this folder with a function ``build``.
        output: folder for the files, one for each monitor.
        monitors: name to the fields of the configuration.
        variant: of the training.

    Returns:
        ``"alone"`` and the monitors' names to losses, weights and the number of written files; ``"errors"``: what the
        monitors logged as errors.
    """
    build = importlib.import_module(f".{engine}", __package__).build
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msmon").addHandler(handler)
    found: dict[str, Any] = {"errors": errors, "alone": _train(build(**variant))}
    for name, fields in monitors.items():
        trained = build(**variant)
        monitor = make_monitor(trained, Path(output) / name, **{**_NOTHING, **fields})
        found[name] = _train(trained)
        monitor.close()
        del trained
    logging.getLogger("msmon").removeHandler(handler)
    return found


_NOTHING = dict.fromkeys(["wg_distribution", "mv_distribution", "param_distribution", "xy_distribution"], False)


def _train(trained: Trained) -> tuple[list[str], str]:
    return [trained.step(number).hex() for number in range(STEPS)], _fingerprint(trained)
