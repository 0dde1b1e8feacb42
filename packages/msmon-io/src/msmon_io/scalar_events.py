"""The scalars of a table as TensorBoard events: tags are the same at every step, so only the numbers are put in."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence

import numpy as np
from numpy.typing import NDArray

from msmon_io.cells import utf8
from msmon_io.event_file import VALUES_PER_EVENT, Event, Summary
from msmon_io.table import Table


class ScalarEvents:
    """The events of one data type, with room for the numbers."""

    def __init__(self, table: Table, rank: int) -> None:
        self._content = _content(table)
        tags = [f"{tag}_{op}" for tag in map(utf8, table.tags(rank)) for op in table.number_ops]
        self._events = [
            _with_room(tags[start : start + VALUES_PER_EVENT]) for start in range(0, len(tags), VALUES_PER_EVENT)
        ]

    @classmethod
    def of(cls, table: Table, rank: int, known: MutableMapping[str, ScalarEvents]) -> ScalarEvents:
        """Those of the table.

        Args:
            known: those of each data type at an earlier step; is kept up to date.
        """
        found = known.get(table.data_type)
        if found is None or found._content != _content(table):
            found = known[table.data_type] = cls(table, rank)
        return found

    def fill(self, table: Table) -> Iterator[bytes]:
        """The events of a step, serialized. float32, as everywhere in TensorBoard."""
        # A message may come in parts: the fields that follow are those of the same event.
        head = Event(step=table.step, wall_time=time.time()).SerializeToString()
        values = table.array()
        with np.errstate(over="ignore"):
            numbers = np.array(table.rows() if values is None else values, "<f4").view(np.uint8).reshape(-1, 4)
        start = 0
        for event, room in self._events:
            filled = event.copy()
            filled[room] = numbers[start : start + len(room)]
            start += len(room)
            yield head + filled.tobytes()


def _content(table: Table) -> list[object]:
    micro_steps = None if table.micro_steps is None else list(table.micro_steps)
    return [table.number_ops, list(table.names), list(table.vpp_stages), micro_steps]


def _with_room(tags: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """An event without step and time, and where the four bytes of each number are in it: at the end of its value."""
    values = [Summary(value=[Summary.Value(tag=tag, simple_value=0.0)]).SerializeToString() for tag in tags]
    event = Event(summary=Summary.FromString(b"".join(values))).SerializeToString()
    sizes = np.array([len(value) for value in values])
    ends = len(event) - sizes.sum() + sizes.cumsum()
    return np.frombuffer(event, np.uint8), ends[:, None] + np.arange(-4, 0)
