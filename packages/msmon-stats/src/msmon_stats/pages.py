"""Memory that is handed out while a step runs and never moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LEAST = 64


class Pages:
    """Rows on one device, in pages that grow with the need.

    A page never moves, so rows may be filled later, by another thread or by work that the device has yet to do.
    """

    def __init__(self, allocate: Callable[[int], tuple[Any, int]], expected: int = 0) -> None:
        """Args:
        allocate: gives the memory of so many rows, and its address where that is of use.
        expected: the number of rows that fit into the first page.
        """
        self._allocate = allocate
        self._next_capacity = max(_LEAST, expected)
        self._pages: list[Any] = []
        self._capacity = self._used = self._address = 0
        self.count = 0
        """How many rows were handed out. The next one has this number among all."""

    def take(self, count: int) -> tuple[Any, int, int]:
        """The page, the first row in it, and the address of the page, for `count` new rows."""
        start = self._used
        if start + count > self._capacity:
            capacity = max(count, self._next_capacity)
            # First: where there is no memory, nothing has changed.
            page, self._address = self._allocate(capacity)
            if self._pages:
                self._pages[-1] = self._pages[-1][:start]
            self._pages.append(page)
            self._capacity, self._next_capacity = capacity, 2 * capacity
            start = 0
        self._used = start + count
        self.count += count
        return self._pages[-1], start, self._address

    def filled(self) -> list[Any]:
        """The pages, each as far as it was handed out."""
        return [*self._pages[:-1], self._pages[-1][: self._used]] if self._pages else []
