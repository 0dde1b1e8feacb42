"""Collectives write into tensors, and autograd's version counters do not notice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import distributed

from msmon_hooks.interception import intercept
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.collectives.calls import COLLECTIVES, Call

_MOST = 4096
"""Storages that are told apart; beyond it all are taken to have changed."""


class CollectiveWrites:
    """How often a collective of this process has written into the memory of a tensor, since something listens.

    An `all_reduce` between two modules changes the output of the first before it is the input of the second, the
    same object with the same version. Whoever remembers tensors by their version adds `of`.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._base = 0
        self._users = 0
        self._owned = Registrations()

    def watch(self, registrations: Registrations) -> None:
        """Count until `registrations` close."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        self._users += 1
        if self._users == 1:
            for name, api in COLLECTIVES.items():
                function = getattr(distributed.distributed_c10d, name, None)
                if api.received and isinstance(function, FunctionType):
                    self._owned.callback(intercept(function, _Counted(self, function, api.received)))
        registrations.callback(self._leave)

    def _leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._owned.close()
            self._forget()

    def wrote(self, tensor: torch.Tensor) -> None:
        """A collective has begun to write into the tensor."""
        storage = _storage(tensor)
        if storage is not None:
            if len(self._counts) >= _MOST:
                self._forget()
            self._counts[storage] = self._counts.get(storage, 0) + 1

    def _forget(self) -> None:
        self._base += 1 + max(self._counts.values(), default=0)
        self._counts.clear()

    def of(self, tensor: torch.Tensor) -> int:
        """A number that is another one after each write into the tensor's memory."""
        if not self._counts:
            return self._base
        storage = _storage(tensor)
        return self._base if storage is None else self._base + self._counts.get(storage, 0)


writes = CollectiveWrites()


class _Counted:
    """What stands around one function."""

    def __init__(self, owner: CollectiveWrites, function: FunctionType, received: tuple[str, ...]) -> None:
        positions = list(inspect.signature(function).parameters)
        self.owner = owner
        self.places = [(name, positions.index(name)) for name in received if name in positions]

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for name, position in self.places:
            for tensor in Call.tensors_in(args[position] if len(args) > position else kwargs.get(name)):
                self.owner.wrote(tensor)
        return original(*args, **kwargs)


def _storage(tensor: torch.Tensor) -> int | None:
    try:
        return int(getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        # It stands for another tensor.
        return None
