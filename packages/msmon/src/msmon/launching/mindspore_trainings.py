"""Puts a monitor onto what a MindSpore program trains, without a line of its script: see `torch_trainings`."""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from mindspore import nn

from msmon.launching.found import Found
from msmon.launching.watchers import Watchers


def imported(module: ModuleType) -> None:
    """`mindspore` has been imported by the program."""
    Trainings().begin()


class Trainings:
    """The optimizers of this process that are not watched yet."""

    def __init__(self) -> None:
        self._watchers = Watchers("msmon.mindspore")
        self._pending: list[weakref.ref[Any]] = []
        self._looking: Any = None
        self._inside = False

    def begin(self) -> None:
        """Notice each optimizer that is made from now on."""
        made = nn.Optimizer.__init__

        @functools.wraps(made)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self._pending.append(weakref.ref(optimizer))
            self._look()

        nn.Optimizer.__init__ = init

    def _look(self) -> None:
        """Look at calls of Cells until nothing is pending."""
        if nn.Cell.__call__ is self._looking:
            return
        call = nn.Cell.__call__

        @functools.wraps(call)
        def look_and_call(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._pending or self._inside or isinstance(cell, nn.Optimizer):
                return call(cell, *args, **kwargs)
            self._inside = True
            try:
                self._watchers.guarded(self._called, cell)
                return call(cell, *args, **kwargs)
            finally:
                self._inside = False

        self._looking = nn.Cell.__call__ = look_and_call
        self._call = call

    def _called(self, cell: Any) -> None:
        optimizers = [one for ref in self._pending if (one := ref()) is not None]
        held = set(map(id, cell.get_parameters()))
        hits = [one for one in optimizers if any(id(parameter) in held for parameter in one.parameters)]
        if not hits:
            return
        self._pending = [ref for ref in self._pending if all(ref() is not one for one in hits)]
        # Before the monitor's hooks come, which change the same; where others have come it stays, and is idle.
        if not self._pending and nn.Cell.__call__ is self._looking:
            nn.Cell.__call__ = self._call
        found = Found(models=[_network(cell)], optimizers=hits)
        self._watchers.watch(found, when="from its first step on", among_others=len(optimizers) > len(hits))


def _network(cell: Any) -> Any:
    """The network in a cell that trains it, such as `nn.TrainOneStepCell`."""
    while isinstance(getattr(cell, "optimizer", None), nn.Optimizer) and isinstance(
        getattr(cell, "network", None), nn.Cell
    ):
        cell = cell.network
    return cell
