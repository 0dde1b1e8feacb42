"""What the code of a compiled graph calls: it says what it has, when it begins to run, and hands over values."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from msmon_hooks.torch.compiled.leaves import Leaf

STORED, RECOMPUTED = "stored", "recomputed"
READ = (STORED, RECOMPUTED)
"""How a value is read: where the compiled program has it in memory, or computed again from what it has there."""


class Run(Protocol):
    """One run of a graph in a step that is sampled."""

    def read(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        """These values are there now; `numbers` are those of `Graph.reads`."""


class Runs(Protocol):
    """Whoever wants to know of the runs of graphs."""

    def begin(self, graph: Graph) -> Run | None:
        """A graph begins to run."""


class Graph:
    """One compiled graph, as its own code describes it.

    The code comes from a cache on disk as well as from the compiler, so nothing that the compiler knew may be needed.

    Args:
        text: the description, JSON.
    """

    def __init__(self, text: str) -> None:
        document = json.loads(text)
        self.leaves = [Leaf.parse(leaf) for leaf in document["leaves"]]
        """All that is marked in it, in the order of the program."""
        self.how: list[str] = document["how"]
        """Of each: `STORED`, `RECOMPUTED`, or why it is not read."""
        self.shapes: list[list[int | None] | None] = document["shapes"]
        self.dtypes: list[str] = document["dtypes"]
        self.reads: list[list[int]] = document["reads"]
        """The leaves that each value that is read stands for."""
        self.part: int = document["part"]
        """How many graphs of the same region come before it."""
        self.backward: bool = document["backward"]
        self.inference: bool = document["inference"]
        """No backward belongs to it."""
        self._here = threading.local()

    def begin(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        """The graph begins to run; these of its values are there already."""
        runs = _all_runs
        self._here.run = None
        for one in runs:
            run = one.begin(self)
            if run is not None:
                self._here.run = run
                break
        self.read(numbers, tensors)

    def read(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        """Values that the graph has computed."""
        run = self._here.run
        if run is not None and numbers:
            run.read(numbers, tensors)


_all_runs: list[Runs] = []


def listen(runs: Runs) -> None:
    """Tell `runs` of graphs that run."""
    _all_runs.append(runs)


def listen_no_more(runs: Runs) -> None:
    """The opposite of `listen`."""
    if runs in _all_runs:
        _all_runs.remove(runs)
