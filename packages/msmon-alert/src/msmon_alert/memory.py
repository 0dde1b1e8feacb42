"""Histories: arrays with one row a tag, that grow with the number of tags and can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Memory:
    """The arrays of one rule. A new row is all zeros, so zero must mean "nothing seen yet".

    >>> memory = Memory()
    >>> memory.reserve(2)
    >>> memory.array("count", np.int32)
    array([0, 0], dtype=int32)
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._rows = 0

    def reserve(self, rows: int) -> None:
        """Makes room for at least this many tags; doubles, so that growing stays linear in all."""
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)

    def array(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> Array:
        """The array `name`, [rows, *shape]; made at the first call. Write into it, do not keep it."""
        array = self._arrays.get(name)
        if array is None or len(array) < self._rows:
            grown = np.zeros((self._rows, *shape), dtype=dtype)
            if array is not None:
                grown[: len(array)] = array
            self._arrays[name] = array = grown
        return array

    def state_dict(self, rows: int) -> dict[str, Array]:
        """A copy of the first `rows` rows of every array."""
        return {name: array[:rows].copy() for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Takes the place of everything held now."""
        self._arrays = {name: np.array(array) for name, array in state.items()}
        self._rows = max((len(array) for array in self._arrays.values()), default=0)
