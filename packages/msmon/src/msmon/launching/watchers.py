"""The monitors of a program that `msmon run` started: set where something trains, closed when the program ends.

What keeps a monitor is its hooks, so it goes with its model and optimizer when the program lets go of these.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msmon.config import output_dir
from msmon.forks import alive_monitors
from msmon.launching.found import Found
from msmon.launching.program import configuration
from msmon.launching.words import say

_WRAPPERS = ("torch", "deepspeed", "megatron", "accelerate", "lightning", "lightning_fabric", "mindspore")
"""Packages whose modules may be a wrapper, with the model as their `module`."""


class Watchers:
    """Sets monitors, says so in a line, and fails alone.

    Args:
        module: the module of msmon that has `TrainerMon` for the framework.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._own: weakref.WeakSet[Any] = weakref.WeakSet()
        self._number = 0
        self._said: set[str] = set()

    def guarded(self, function: Callable[..., None], *args: Any) -> None:
        """Call it; what fails costs one line."""
        try:
            function(*args)
        except Exception as error:
            self.say_once(f"could not watch, the training goes on: {type(error).__name__}: {error}")

    def say_once(self, text: str) -> None:
        """A line that a program needs once."""
        if text not in self._said:
            self._said.add(text)
            say(text)

    def watch(self, found: Found, *, when: str, among_others: bool) -> None:
        """Set a monitor.

        Args:
            found: what trains.
            when: from when on, in words.
            among_others: optimizers of other models are there too, so each model has a directory of its own.
        """
        if self.others_watch():
            return
        folder = output_dir()
        if among_others or self._number:
            folder /= f"{type(_inner(found.models[0])).__name__}_{self._number}"
        trainer_mon = import_module(self._module).TrainerMon
        monitor = trainer_mon(**configuration(), process_group=found.process_group, output_dir=folder)
        try:
            monitor.set_monitor(
                found.models[0] if len(found.models) == 1 else list(found.models),
                found.grad_acc_steps,
                found.optimizers[0] if len(found.optimizers) == 1 else list(found.optimizers),
                **found.groups,
            )
        except BaseException:
            monitor.close()
            raise
        self.announce(monitor, found, when, folder)

    def others_watch(self) -> bool:
        """Whether the script has a monitor of its own, or its trainer a callback that has one."""
        return any(one.is_watching and one not in self._own for one in alive_monitors())

    def announce(self, monitor: Any, found: Found, when: str, folder: Path) -> None:
        """Say what is watched; and at the end of the program close it, and say where to look."""
        if not self._number and monitor.rank == 0:
            _let_messages_be_seen()
        self._own.add(monitor)
        self._number += 1
        atexit.register(_end, weakref.ref(monitor), monitor.rank, folder)
        if monitor.rank == 0:
            models = " and ".join(type(_inner(one)).__name__ for one in found.models)
            by = f" by {found.engine}" if found.engine else ""
            words = ", ".join(name.removesuffix("_distribution") for name in monitor.monitors) or "nothing yet"
            said = f"watching {models}, trained with {_names(found.optimizers)}{by}, {when}"
            say(f"{said}: {words}; files in {folder}")


def _names(optimizers: Sequence[Any]) -> str:
    counts = Counter(type(one).__name__ for one in optimizers)
    return " and ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())


def _end(reference: weakref.ref[Any], rank: int, folder: Path) -> None:
    monitor = reference()
    if monitor is not None:
        monitor.close()
    if rank == 0:
        say(f"look at it: msmon show {folder}, or msmon report {folder} --open")


def _let_messages_be_seen() -> None:
    """The closing line is information, which no program shows that has not set up its logging."""
    logger = logging.getLogger("msmon")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def _inner(model: Any) -> Any:
    """The model inside of its wrappers."""
    while type(model).__module__.split(".")[0] in _WRAPPERS and hasattr(model, "module"):
        model = model.module
    return getattr(model, "_orig_mod", model)
