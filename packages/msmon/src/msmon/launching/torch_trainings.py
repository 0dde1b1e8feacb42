"""Puts a monitor onto what a PyTorch program trains, without a line of its script.

An optimizer that is made is written down. Then calls of modules are looked at, until one comes that is a training
forward of what an optimizer updates: before it runs the monitor is set. Where no module is called that holds the
parameters, the model is looked for when the optimizer has stepped, and watched from the next step on. Hooks of
optimizers only note that: a hook that adds or removes hooks would break the loop over them, and the step.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msmon.launching.found import Found
from msmon.launching.torch_engines import engine_of
from msmon.launching.watchers import Watchers

_LATE = "from its second step on"


def imported(module: ModuleType) -> None:
    """`torch` has been imported by the program."""
    Trainings().begin()


class Trainings:
    """The optimizers of this process that are not watched yet, and how they come to be."""

    def __init__(self) -> None:
        self._watchers = Watchers("msmon.pytorch")
        self._pending: list[weakref.ref[Any]] = []
        self._forwards: set[int] = set()
        """`id` of the pending optimizers since which a training forward was seen."""
        self._within: set[int] = set()
        """`id` of the optimizers in whose step the program is: one that is given a closure calls the model there."""
        self._stepped: set[int] = set()
        """`id` of the pending optimizers that have stepped after a training forward."""
        self._without: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """What holds nothing of the pending optimizers. One may stay pending for ever, and looking costs."""
        self._thread = threading.local()
        self._lock = threading.RLock()
        self._looking: Any = None
        self._global_hooks: list[Any] = []

    def begin(self) -> None:
        """Notice each optimizer that is made from now on."""
        made = torch.optim.Optimizer.__init__

        @functools.wraps(made)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            with self._lock:
                self._pending.append(weakref.ref(optimizer))
                self._without.clear()
                self._look()

        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign, assignment]

    def _look(self) -> None:
        """Look at calls of modules, and at optimizers that step."""
        if not self._global_hooks:
            self._global_hooks = [
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ]
        if nn.Module.__call__ is not self._looking:
            self._call = nn.Module.__call__
            self._looking = nn.Module.__call__ = self._wrapped(self._call)  # type: ignore[method-assign]

    def _look_no_more(self) -> None:
        for hook in self._global_hooks:
            hook.remove()
        self._global_hooks = []
        for known in (self._forwards, self._within, self._stepped):
            known.clear()
        # Where somebody else has come meanwhile it stays, and is idle.
        if nn.Module.__call__ is self._looking:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def look_and_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # A compiler that inlines this knows that it compiles, and is left with the call.
            idle = torch.compiler.is_compiling() or not self._pending or not torch.is_grad_enabled()
            if idle or getattr(self._thread, "inside", False):
                return call(module, *args, **kwargs)
            self._thread.inside = True
            try:
                self._watchers.guarded(self._called, module)
                return call(module, *args, **kwargs)
            finally:
                self._thread.inside = False

        return look_and_call

    def _optimizers(self) -> list[Any]:
        alive = [(ref, ref()) for ref in self._pending]
        self._pending = [ref for ref, optimizer in alive if optimizer is not None]
        return _outermost([optimizer for _, optimizer in alive if optimizer is not None])

    def _called(self, module: nn.Module) -> None:
        """A module is about to be called by the program itself, and gradients are computed."""
        if module in self._without and not self._stepped:
            return
        with self._lock:
            optimizers = self._optimizers()
            self._forwards.update(map(id, optimizers))
            found = engine_of(module) or _found_at(module, optimizers)
            if found is None:
                self._without.add(module)
            else:
                early = self._within.isdisjoint(map(id, found.optimizers))
                self._watch(found, optimizers, "from its first step on" if early else _LATE)
            for optimizer in optimizers:
                if id(optimizer) in self._stepped and optimizer in self._optimizers():
                    self._look_for_its_model(optimizer, optimizers)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._within.add(id(optimizer))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._within.discard(id(optimizer))
        # A step before anything has run makes its state, and is none.
        if id(optimizer) in self._forwards:
            self._stepped.add(id(optimizer))

    def _look_for_its_model(self, optimizer: Any, optimizers: list[Any]) -> None:
        models = _holders(_parameters(optimizer))
        if models:
            self._watch(Found(models=models, optimizers=[optimizer]), optimizers, _LATE)
        else:
            name = type(optimizer).__name__
            self._watchers.say_once(f"{name} is not watched: no module holds the parameters that it updates")
            self._drop([optimizer])

    def _watch(self, found: Found, optimizers: list[Any], when: str) -> None:
        known = found.optimizers if found.engine is None else optimizers
        self._drop(known)
        self._watchers.watch(found, when=when, among_others=len(optimizers) > len(known))

    def _drop(self, optimizers: Sequence[Any]) -> None:
        gone = {id(parameter) for optimizer in optimizers for parameter in _parameters(optimizer)}
        # Those inside of it update the same.
        self._pending = [
            ref
            for ref in self._pending
            if (one := ref()) is not None and not gone.issuperset(map(id, _parameters(one)))
        ]
        if not self._pending:
            self._look_no_more()


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _outermost(optimizers: list[Any]) -> list[Any]:
    """Without those that another one has inside: it decides when they step. Of several over the same parameters the
    last has taken the others' place."""
    inside = {
        id(part) for one in optimizers for value in vars(one).values() for part in _parts(value) if part is not one
    }
    kept = [one for one in optimizers if id(one) not in inside]
    places = {frozenset(map(id, _parameters(one))): one for one in kept}
    return list(places.values())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


def _found_at(module: nn.Module, optimizers: list[Any]) -> Found | None:
    """What the optimizers update that share parameters with a module."""
    held = set(map(id, module.parameters()))
    hits = [one for one in optimizers if any(id(parameter) in held for parameter in _parameters(one))]
    if not hits:
        return None
    updated = [parameter for one in hits for parameter in _parameters(one)]
    # A part of the model that is called alone.
    whole = held.issuperset(map(id, updated))
    return Found(models=[module] if whole else _holders(updated) or [module], optimizers=hits)


def _holders(parameters: list[Any]) -> list[nn.Module]:
    """The outermost module that holds all of the parameters; else all outermost ones that hold some."""
    wanted = set(map(id, parameters))
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in vars(one)]
    inside = {id(child) for one in modules for child in one._modules.values()}
    roots = [one for one in modules if id(one) not in inside]
    holding = [(one, {id(parameter) for parameter in one.parameters()} & wanted) for one in roots]
    whole = [one for one, held in holding if held == wanted]
    return whole[:1] or [one for one, held in holding if held]
