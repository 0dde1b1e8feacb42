"""The first anomalies of all ranks, in the order in which they happened, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msmon_alert.record import Record, order_key

_Entry = tuple[int | None, tuple[int, ...], int, Record]
"""Micro-step, place in it, how many records were added before, and the record."""


class FirstRecords:
    """Keeps the first `count` records in the order of `order_key`, however many are added.

    A record without a micro-step takes the last one of its step, which is known only when everything was seen. So of
    each step the first records with and those without a micro-step are kept apart, and they are joined at the end.
    Memory: at most 3 * count records of each step that may still be among the first.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count: {count} is not allowed; it takes an integer >= 1")
        self._count = count
        self._steps: dict[int, dict[str, _Entry]] = {}
        self._last_micro: dict[int, int] = {}
        self._last_step: int | None = None
        self._numbers = itertools.count(1)

    def add(self, key: str, record: Record) -> None:
        """A key that is there takes the new record: a resumed run repeats steps.

        Raises:
            ValueError: the record lacks a field; nothing is added.
        """
        step, micro_step, place = order_key(record)
        if self._last_step is not None and step > self._last_step:
            return
        number = next(self._numbers)
        held = self._steps.setdefault(step, {})
        held[key] = (*held.get(key, (micro_step, place, number))[:3], record)
        self._last_micro[step] = max(self._last_micro.get(step, 0), micro_step or 0)
        if number % self._count == 0:
            self._forget()

    def _forget(self) -> None:
        """Drop what cannot be among the first any more."""
        total = 0
        for step in sorted(self._steps):
            if total >= self._count:
                del self._steps[step]
                continue
            ordered = self._ordered(step)
            late = [pair for pair in ordered if pair[1][0] is None][: self._count]
            self._steps[step] = dict([pair for pair in ordered if pair[1][0] is not None][: self._count] + late)
            total += len(self._steps[step])
            self._last_step = step if total >= self._count else None

    def _ordered(self, step: int) -> list[tuple[str, _Entry]]:
        last = self._last_micro[step]

        def place(pair: tuple[str, _Entry]) -> tuple[int, tuple[int, ...], int]:
            micro_step, place, number, _ = pair[1]
            return last if micro_step is None else micro_step, place, number

        return sorted(self._steps[step].items(), key=place)

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        found = ((key, entry[3]) for step in sorted(self._steps) for key, entry in self._ordered(step))
        return itertools.islice(found, self._count)
