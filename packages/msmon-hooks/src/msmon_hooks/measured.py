"""Remembers, within a step, which tensors were read already: an unchanged tensor is not read twice."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from msmon_hooks.framework import Framework


class Measured:
    """Entries for tensor objects at one version of their content.

    The output of one module is often the input of the next, and the gradient that the optimizer sees is often the
    very tensor that backward left. The key is the tensor object (held weakly) and the framework's version counter,
    which every in-place operation increments. A kernel that writes into a tensor without telling the framework goes
    unnoticed. Without such a counter nothing is remembered.

    Example:
        >>> import torch
        >>> from msmon_hooks.torch.framework import TORCH
        >>> seen = Measured(TORCH)
        >>> x = torch.ones(3)
        >>> seen.put(x, 5); seen.get(x)
        5
        >>> _ = x.add_(1)
        >>> seen.get(x) is None
        True
    """

    def __init__(self, framework: Framework) -> None:
        self._version = framework.version
        self._entries: dict[int, tuple[weakref.ref[Any], int, Any]] = {}

    def get(self, tensor: Any) -> Any | None:
        """What was stored for the tensor, if its content is still the same; else None."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1] != self._version(tensor):
            return None
        return entry[2]

    def put(self, tensor: Any, value: Any) -> None:
        """Store `value` for the tensor as it is now. Tensors without a version counter are not stored."""
        version = self._version(tensor)
        if version is not None:
            self._entries[id(tensor)] = (weakref.ref(tensor), version, value)

    def handles(self, tensors: Sequence[Any], measure: Callable[[list[Any]], list[int]]) -> list[int]:
        """The handle of each tensor. Those that are not stored yet are given to `measure`, all at once.

        Example:
            >>> import torch
            >>> from msmon_hooks.torch.framework import TORCH
            >>> x, y = torch.ones(3), torch.ones(2)
            >>> seen = Measured(TORCH); seen.put(x, 5)
            >>> seen.handles([x, y], lambda new: [7] * len(new))
            [5, 7]
        """
        entries, version_of = self._entries, self._version
        handles: list[int] = []
        unread: list[tuple[int, Any, int | None]] = []
        for tensor in tensors:
            version = version_of(tensor)
            entry = entries.get(id(tensor))
            if entry is not None and entry[1] == version and entry[0]() is tensor:
                handles.append(entry[2])
            else:
                unread.append((len(handles), tensor, version))
                handles.append(-1)
        if unread:
            for (index, tensor, version), handle in zip(unread, measure([one[1] for one in unread]), strict=True):
                handles[index] = handle
                if version is not None:
                    entries[id(tensor)] = (weakref.ref(tensor), version, handle)
        return handles

    def clear(self) -> None:
        """Forget everything: the step is over."""
        self._entries.clear()
