"""Notices that modules or parameters were added, replaced, frozen or unfrozen while the training runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from msmon_hooks.torch.callers import is_called_in


class ModelChanges:
    """Compares the model with what it was, object by object.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> changes = ModelChanges([model], None, lambda: print("changed"))
        >>> changes.check()
        >>> model[0] = nn.Linear(2, 3); changes.check()
        changed
        >>> model[0].bias.requires_grad = False; changes.check()
        changed
    """

    def __init__(self, models: Sequence[nn.Module], optimizer: Any, on_change: Callable[[], None]) -> None:
        self._models = list(models)
        self._optimizer = optimizer
        self._on_change = on_change
        self._known = self._snapshot()

    def check(self) -> None:
        """Call back if anything is different from the last time.

        What `torch.func.functional_call` puts into the modules is theirs for one call.
        """
        if self._is_same() or is_called_in("torch.nn.utils.stateless"):
            return
        self._known = self._snapshot()
        self._on_change()

    def follow(self, optimizer: Any) -> None:
        """Look at the parameter groups of another optimizer."""
        self._optimizer = optimizer

    def close(self) -> None:
        """Let go of the model."""
        self._models.clear()
        self._optimizer = None
        self._known.clear()

    def _snapshot(self) -> list[tuple[weakref.ref[Any] | None, Any]]:
        # Weak references: a number that a dead object had may belong to a new one.
        return [(None if thing is None else weakref.ref(thing), detail) for thing, detail in self._walk()]

    def _is_same(self) -> bool:
        known = iter(self._known)
        for thing, detail in self._walk():
            entry = next(known, None)
            if entry is None or entry[1] != detail or (entry[0] is not None and entry[0]() is not thing):
                return False
        return next(known, None) is None

    def _walk(self) -> Iterator[tuple[Any, Any]]:
        groups = getattr(self._optimizer, "param_groups", ())
        yield None, sum(len(group["params"]) for group in groups)
        waiting = list(self._models)
        seen = set(map(id, waiting))
        while waiting:
            module = waiting.pop()
            yield module, module.__dict__.get("_compiled_call_impl") is not None
            for parameter in module._parameters.values():
                if parameter is not None:
                    # One of a lazy module stays the same object and gets another type.
                    yield parameter, (parameter.requires_grad, type(parameter))
            for child in module._modules.values():
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)
