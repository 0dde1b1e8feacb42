"""Hooks around calls of modules, also of modules that torch.compile runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from attrs import define, field
from torch import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.hooks import Hook
from msmon_hooks.interception import intercept
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations, Removable
from msmon_hooks.torch import weight_passes
from msmon_hooks.torch.passes import is_apart, is_compiling


class _Registered(Hook):
    """What a module holds of a hook. In passes beside the training it does nothing.

    So it is where torch.compile traces. A graph break at every module would show the tensors, but it also takes
    apart what the compiler fuses, and with it changes the losses (seen in bfloat16).
    """

    def __init__(self, hook: BeforeCall | AfterCall) -> None:
        super().__init__(hook.guard)
        self.hook = hook
        self.clock = hook.clock
        self.muted = False
        """The call is watched from outside of its compiled region."""


class _Before(_Registered):
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The compiler must not look at the clock: each answer would be compiled.
        if is_compiling() or self.muted or (self.clock is not None and not self.clock.sampled):
            return
        if not is_apart(args, kwargs):
            self.hook(module, args, kwargs, None)


class _After(_Registered):
    def __call__(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if is_compiling() or self.muted or (self.clock is not None and not self.clock.sampled):
            return
        # torch leaves the keyword arguments out where the module raised.
        kwargs = rest[0] if len(rest) > 1 else {}
        if not is_apart(args, kwargs):
            self.hook(module, args, kwargs, rest[-1])


def hook_functions() -> list[Callable[..., Any]]:
    """What modules call."""
    return [_Before.__call__, _After.__call__]


@define(slots=True, eq=False)
class _Watched:
    """A hooked module."""

    module: nn.Module
    hooks: dict[BeforeCall | AfterCall, tuple[_Registered, Removable]] = field(factory=dict)
    """The hooks in the order in which they run, and what takes each off."""
    compiled: Any = None
    """The replacement of the module's compiled call, where there is one."""
    patch: Registrations = field(factory=Registrations)


class CallHooks:
    """Registers hooks on modules' forwards and takes them off.

    Inside a compiled region hooks are silent. A module that is the entry of one (`module.compile()`) is watched
    from outside: its compiled call is wrapped.
    """

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}

    def add(self, module: nn.Module, hook: BeforeCall | AfterCall) -> None:
        """Run `hook` at each call of `module`, behind the hooks that are there."""
        watched = self._watched.setdefault(id(module), _Watched(module))
        if isinstance(hook, BeforeCall):
            before = _Before(hook)
            watched.hooks[hook] = (before, module.register_forward_pre_hook(before, with_kwargs=True))
        else:
            after = _After(hook)
            removable = module.register_forward_hook(after, with_kwargs=True, always_call=hook.always)
            watched.hooks[hook] = (after, removable)
        self._wrap(watched)

    def remove(self, module: nn.Module, hook: BeforeCall | AfterCall) -> None:
        """Take a hook off."""
        watched = self._watched[id(module)]
        watched.hooks.pop(hook)[1].remove()
        if not watched.hooks:
            watched.patch.close()
            del self._watched[id(module)]

    def refresh(self) -> None:
        """Notice modules that were compiled since they were hooked."""
        for watched in self._watched.values():
            self._wrap(watched)

    def _wrap(self, watched: _Watched) -> None:
        present = getattr(watched.module, "_compiled_call_impl", None)
        if present is None or present is watched.compiled:
            return

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if is_compiling() or is_apart(args, kwargs):
                    return original(*args, **kwargs)
                return _call(watched, original, args, kwargs)

            watched.compiled = call
            return call

        watched.patch.patch(watched.module, "_compiled_call_impl", make)

    def close(self) -> None:
        """Take all hooks off all modules."""
        for watched in list(self._watched.values()):
            for hook in list(watched.hooks):
                self.remove(watched.module, hook)


def _call(watched: _Watched, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A copy, since a hook may take itself off. Where the compiler gives up it runs the module as it is, hooks and
    # all: these are muted, or the call would be seen twice.
    hooks = {hook: registered for hook, (registered, _) in watched.hooks.items()}
    for hook in hooks:
        if isinstance(hook, BeforeCall):
            hook(watched.module, args, kwargs, None)
    output, returned = None, False
    for registered in hooks.values():
        registered.muted = True
    try:
        output = original(*args, **kwargs)
        returned = True
    finally:
        for hook, registered in hooks.items():
            registered.muted = False
            if isinstance(hook, AfterCall) and (returned or hook.always):
                hook(watched.module, args, kwargs, output)
    return output


def prepare(models: Sequence[nn.Module], recording: Recording, registrations: Registrations) -> None:
    """Until the registrations are closed, notice backwards for weights alone, and have `torch.jit.script` compile
    modules without hooks of this package, which it would refuse."""
    weight_passes.watch(registrations)
    if isinstance(torch.jit.script, FunctionType):
        registrations.callback(intercept(torch.jit.script, _script_without_hooks))


def _script_without_hooks(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    modules = [
        module for value in (*args, *kwargs.values()) if isinstance(value, nn.Module) for module in value.modules()
    ]
    hidden = [
        (hooks, dict(hooks))
        for module in modules
        for hooks in (module._forward_pre_hooks, module._forward_hooks)
        if any(isinstance(hook, _Registered) for hook in hooks.values())
    ]
    try:
        for hooks, everything in hidden:
            for number, hook in everything.items():
                if isinstance(hook, _Registered):
                    del hooks[number]
        return original(*args, **kwargs)
    finally:
        for hooks, everything in hidden:
            # In place and in their order: what takes a hook off looks for it in this dictionary.
            hooks.clear()
            hooks.update(everything)
