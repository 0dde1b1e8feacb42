"""Rows of partials that are handed out while a step runs and never move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LEAST = 64


class Pages:
    """Float64 rows `[n, 8]` on one device, in pages that grow with the need.

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
        self._taken: list[tuple[int, int]] = []

    def take(self, count: int, first_handle: int) -> tuple[Any, int, int]:
        """The page, the first row in it, and the address of the page, for `count` new rows.

        Their handles count up from `first_handle`.
        """
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
        self._taken.append((first_handle, count))
        return self._pages[-1], start, self._address

    @property
    def count(self) -> int:
        """How many rows were handed out."""
        return sum(count for _, count in self._taken)

    def handles(self) -> list[int]:
        """The handle of each row, in order."""
        return [handle for first, count in self._taken for handle in range(first, first + count)]

    def filled(self) -> list[Any]:
        """The pages, each as far as it was handed out."""
        return [*self._pages[:-1], self._pages[-1][: self._used]]
