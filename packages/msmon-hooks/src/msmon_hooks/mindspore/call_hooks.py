"""Hooks around calls of Cells, which compiled graphs never see.

A hook that is registered with a Cell becomes part of every graph in which the Cell is compiled, and MindSpore refuses
to compile what it is made of: training under `jit` would stop. So no hook is registered. `Cell.__call__` is
wrapped, which only calls from Python go through, and the hooks of a Cell are kept in its `__dict__`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from mindspore import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.hooks import Hook
from msmon_hooks.registrations import Registrations, Removable

_KEY = "_msmon_call_hooks"
_lock = threading.Lock()
_patches = Registrations()
_users = 0
_of_classes: dict[type, tuple[BeforeCall | AfterCall, ...]] = {}


class _Kept:
    """The hooks of one Cell, in the order in which they run. A copy of the Cell has none."""

    def __init__(self) -> None:
        self.hooks: tuple[BeforeCall | AfterCall, ...] = ()

    __reduce__ = Hook.__reduce__


class CallHooks:
    """Takes hooks on calls of Cells, and of modules of adapters that register hooks as torch's do."""

    def __init__(self) -> None:
        self._cells: list[tuple[Any, BeforeCall | AfterCall]] = []
        self._removables: dict[BeforeCall | AfterCall, Removable] = {}
        self._classes: list[tuple[type, BeforeCall | AfterCall]] = []
        self._attached = False

    def add(self, module: Any, hook: BeforeCall | AfterCall) -> None:
        """Run `hook` at each call of `module`, behind the hooks that are there."""
        if not isinstance(module, nn.Cell):
            self._removables[hook] = _register(module, hook)
            return
        kept = vars(module).get(_KEY)
        if not isinstance(kept, _Kept):
            kept = vars(module)[_KEY] = _Kept()
        self._watch()
        kept.hooks = (*kept.hooks, hook)
        self._cells.append((module, hook))

    def add_class(self, cls: type, hook: BeforeCall | AfterCall) -> None:
        """Run `hook` at each call of any Cell of this class. The hook must not lead to a network, which it
        would keep alive."""
        self._watch()
        _of_classes[cls] = (*_of_classes.get(cls, ()), hook)
        self._classes.append((cls, hook))

    def remove(self, module: Any, hook: BeforeCall | AfterCall) -> None:
        """Take a hook off."""
        if hook in self._removables:
            self._removables.pop(hook).remove()
            return
        self._cells.remove((module, hook))
        _take_off(module, hook)

    def refresh(self) -> None:
        """A Cell that was compiled is seen as before: its calls from Python."""

    def close(self) -> None:
        """Take all hooks off all Cells; harmless when called again."""
        global _users
        for module, hook in self._cells:
            _take_off(module, hook)
        self._cells.clear()
        for removable in self._removables.values():
            removable.remove()
        self._removables.clear()
        for cls, hook in self._classes:
            _of_classes[cls] = tuple(other for other in _of_classes[cls] if other is not hook)
            if not _of_classes[cls]:
                del _of_classes[cls]
        self._classes.clear()
        if self._attached:
            self._attached = False
            with _lock:
                _users -= 1
                if not _users:
                    _patches.close()

    def _watch(self) -> None:
        """Begin to see calls."""
        global _users
        if self._attached:
            return
        with _lock:
            _users += 1
            if _users == 1:
                _patches.patch(nn.Cell, "__call__", _watching)
        self._attached = True


def _take_off(cell: nn.Cell, hook: BeforeCall | AfterCall) -> None:
    kept = vars(cell).get(_KEY)
    if isinstance(kept, _Kept):
        kept.hooks = tuple(other for other in kept.hooks if other is not hook)
        if not kept.hooks:
            del vars(cell)[_KEY]


def _watching(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
        kept = self.__dict__.get(_KEY)
        hooks = kept.hooks if type(kept) is _Kept else ()
        if _of_classes:
            hooks += tuple(hook for cls in type(self).__mro__ for hook in _of_classes.get(cls, ()))
        if not hooks:
            return original(self, *args, **kwargs)
        for hook in hooks:
            if isinstance(hook, BeforeCall):
                hook(self, args, kwargs, None)
        try:
            output = original(self, *args, **kwargs)
        except BaseException:
            for hook in hooks:
                if isinstance(hook, AfterCall) and hook.always:
                    hook(self, args, kwargs, None)
            raise
        for hook in hooks:
            if isinstance(hook, AfterCall):
                hook(self, args, kwargs, output)
        return output

    return __call__


class _Before(Hook):
    def __init__(self, hook: BeforeCall) -> None:
        super().__init__(hook.guard)
        self.hook = hook

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        self.hook.fire(module, args, kwargs or {}, None)


class _After(Hook):
    def __init__(self, hook: AfterCall) -> None:
        super().__init__(hook.guard)
        self.hook = hook

    def fire(self, module: Any, args: tuple[Any, ...], *rest: Any) -> None:
        self.hook.fire(module, args, rest[0] if len(rest) > 1 else {}, rest[-1])


def _register(module: Any, hook: BeforeCall | AfterCall) -> Removable:
    before = isinstance(hook, BeforeCall)
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    registered = _Before(hook) if isinstance(hook, BeforeCall) else _After(hook)
    try:
        return register(registered, with_kwargs=True)
    except TypeError:  # an adapter of an older torch
        return register(registered)
