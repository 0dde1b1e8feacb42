"""Hooks around calls of modules, whatever a framework's way of calling them is."""

from __future__ import annotations

from typing import Any, Protocol

from msmon_hooks.clock import Clock
from msmon_hooks.hooks import Hook


class CallHook(Hook):
    """A hook on calls of a module."""

    clock: Clock | None = None
    """It has nothing to do in steps that this does not sample; None: it fires in all."""

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The module is called, or has returned `output`."""
        raise NotImplementedError


class BeforeCall(CallHook):
    """Fires before a module runs; `output` is None."""


class AfterCall(CallHook):
    """Fires after a module has run."""

    always = False
    """Also when the module raised; `output` is None then."""


class CallHooks(Protocol):
    """Takes hooks on calls of modules."""

    def add(self, module: Any, hook: BeforeCall | AfterCall) -> None:
        """Run `hook` at each call of `module`, behind the hooks that are there."""

    def remove(self, module: Any, hook: BeforeCall | AfterCall) -> None:
        """Take a hook off."""

    def refresh(self) -> None:
        """Notice modules that are called in another way since they were hooked: that were compiled."""

    def close(self) -> None:
        """Take all hooks off all modules; harmless when called again."""
