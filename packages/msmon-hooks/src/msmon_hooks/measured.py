"""Remembers, within a step, which tensors were read already: an unchanged tensor is not read twice."""

from __future__ import annotations

import weakref
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
        """Store ``value`` for the tensor as it is now. Tensors without a version counter are not stored."""
        version = self._version(tensor)
        if version is not None:
            self._entries[id(tensor)] = (weakref.ref(tensor), version, value)

    def clear(self) -> None:
        """Forget everything: the step is over."""
        self._entries.clear()
