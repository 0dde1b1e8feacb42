"""The first anomalies of all ranks, in the order in which they happened, in bounded memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from msmon_alert.record import Record, order_key

_Place = tuple[int, ...]
_Entry = tuple[tuple[int, ...], int, str, Record]


class FirstRecords:
    """Keeps the first `count` records in the order of `order_key`, however many are added.

    A record without a micro-step takes the last one of its step, which is known only when everything was seen. So each
    step keeps its first records with and those without a micro-step apart, and they are joined at the end. Memory: at
    most 2 * count records of each step that may still be among the first.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count: {count} is not allowed; it takes an integer >= 1")
        self._count = count
        self._steps: dict[int, _Step] = {}
        self._last_step: int | None = None
        self._numbers = itertools.count()

    def add(self, key: str, record: Record) -> None:
        """ValueError for a record that lacks a field; nothing is added."""
        step, micro_step, place = order_key(record)
        if self._last_step is not None and step > self._last_step:
            return
        held = self._steps.get(step)
        if held is None:
            held = self._steps[step] = _Step(self._count)
        grown = held.add(micro_step, place, next(self._numbers), key, record)
        if grown:
            self._forget_later_steps()

    def _forget_later_steps(self) -> None:
        total = 0
        for step in sorted(self._steps):
            if total >= self._count:
                del self._steps[step]
                continue
            total += len(self._steps[step])
            self._last_step = step if total >= self._count else None

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        found = (pair for step in sorted(self._steps) for pair in self._steps[step].ordered())
        return itertools.islice(found, self._count)


class _Step:
    def __init__(self, count: int) -> None:
        self._with_micro = _Smallest(count)
        self._without_micro = _Smallest(count)
        self._last_micro = 0

    def __len__(self) -> int:
        return len(self._with_micro) + len(self._without_micro)

    def add(self, micro_step: int | None, place: _Place, number: int, key: str, record: Record) -> bool:
        if micro_step is None:
            return self._without_micro.add(place, number, key, record)
        self._last_micro = max(self._last_micro, micro_step)
        return self._with_micro.add((micro_step, *place), number, key, record)

    def ordered(self) -> Iterator[tuple[str, Record]]:
        late = (((self._last_micro, *place), n, key, record) for place, n, key, record in self._without_micro.ordered())
        for _, _, key, record in heapq.merge(self._with_micro.ordered(), late):
            yield key, record


class _Smallest:
    """The `count` entries with the smallest place; of equal places, the first added. A key that is there takes the new
    record: a resumed run repeats steps."""

    def __init__(self, count: int) -> None:
        self._count = count
        # A heap gives its smallest; of negated places and numbers that is the largest place, the newest of equal ones.
        self._heap: list[tuple[_Place, int, str]] = []
        self._records: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, place: _Place, number: int, key: str, record: Record) -> bool:
        """Whether there is one entry more than before."""
        if key in self._records:
            self._records[key] = record
            return False
        entry = (tuple(-part for part in place), -number, key)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, entry)
            self._records[key] = record
            return True
        if entry > self._heap[0]:
            del self._records[heapq.heapreplace(self._heap, entry)[2]]
            self._records[key] = record
        return False

    def ordered(self) -> Iterator[_Entry]:
        for place, number, key in sorted(self._heap, reverse=True):
            yield tuple(-part for part in place), -number, key, self._records[key]
