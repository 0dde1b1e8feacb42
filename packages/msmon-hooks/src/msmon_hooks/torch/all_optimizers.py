"""Torch's hooks of the steps of all optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msmon_hooks.guard import Guarded
from msmon_hooks.registrations import Registrations
from msmon_hooks.step_calls import Arguments
from msmon_hooks.torch.step_calls import StepCalls


class Owner(Protocol):
    """Says which optimizers are of interest."""

    guard: Guarded
    active: bool
    own: dict[int, Callable[[], Any]]
    """By `id`, optimizers that tell by hooks of their own."""

    def other(self, optimizer: Any) -> StepCalls | None:
        """What is told of its steps; None: they are of no interest."""


def watch_all(owner: Owner, registrations: Registrations) -> None:
    """Have `StepCalls` told of the steps of all optimizers that `owner` is interested in; `registrations` end it."""
    _clear_abandoned()
    handles = (register_optimizer_step_pre_hook(_AnyBefore(owner)), register_optimizer_step_post_hook(_AnyAfter(owner)))
    _global_hooks.append((weakref.ref(owner), handles))
    registrations.callback(partial(_remove_hooks, handles))


class _OfAny:
    """Torch keeps the hook for ever: it must not keep what it tells."""

    def __init__(self, owner: Owner) -> None:
        self.owner = weakref.ref(owner)

    def calls(self, optimizer: Any) -> StepCalls | None:
        owner = self.owner()
        if owner is None or not owner.active:
            return None
        own = owner.own.get(id(optimizer))
        if own is not None and own() is optimizer:
            return None
        return owner.guard.run(owner.other, optimizer)


class _AnyBefore(_OfAny):
    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        calls = self.calls(optimizer)
        replaced = None if calls is None else calls.guard.run(calls.before, args[1:], kwargs)
        return replaced and ((*args[:1], *replaced[0]), replaced[1])


class _AnyAfter(_OfAny):
    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = self.calls(optimizer)
        if calls is not None:
            calls.guard.always(calls.after)


_global_hooks: list[tuple[weakref.ref[Owner], tuple[Any, ...]]] = []


def _remove_hooks(handles: tuple[Any, ...]) -> None:
    for handle in handles:
        handle.remove()
    _global_hooks[:] = [entry for entry in _global_hooks if entry[1] is not handles]


def _clear_abandoned() -> None:
    """Of monitors that were let go of without being closed. Not when the garbage collector finds them: torch may be
    running through its hooks just then."""
    for handles in [handles for owner, handles in _global_hooks if owner() is None]:
        _remove_hooks(handles)
