"""Notices the optimizer's step: before it, after each closure, and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.wrappers import unwrapped_optimizer


class OptimizerSteps:
    """Calls back at the optimizer's step.

    ``begins(gradients_ready)`` comes first; ``gradients_ready`` is False when the step was called with a closure,
    which has yet to compute the gradients: ``evaluated()`` then comes after each call of the closure, so that the
    last one stands for the gradients that the final update consumed. ``ends(result)`` comes last, with what ``step``
    returned, where that is known.
    """

    def __init__(
        self, begins: Callable[[bool], None], evaluated: Callable[[], None], ends: Callable[[Any], None]
    ) -> None:
        self.begins = begins
        self.evaluated = evaluated
        self.ends = ends
        self.active = True

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """By the optimizer's own hooks, which draw no warning from schedulers; else by wrapping the instance's
        ``step``, which is given back at the end."""
        optimizer = unwrapped_optimizer(optimizer)
        if hasattr(optimizer, "register_step_pre_hook"):
            registrations.add(optimizer.register_step_pre_hook(_Before(self)))
            registrations.add(optimizer.register_step_post_hook(_After(self)))
        else:
            registrations.patch(optimizer, "step", self._wrapped)
        registrations.callback(self._stop)

    def _stop(self) -> None:
        self.active = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], first: int) -> tuple[Any, Any] | None:
        """A step begins; returns replaced arguments where there is a closure at position ``first``."""
        closure = kwargs.get("closure", args[first] if len(args) > first else None)
        if not callable(closure):
            self.begins(True)
            return None
        self.begins(False)
        watched = self._watched(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (*args[:first], watched, *args[first + 1 :]), kwargs

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def evaluate() -> Any:
            loss = closure()
            self.evaluated()
            return loss

        return evaluate

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            args, kwargs = self.before(args, kwargs, 0) or (args, kwargs)
            result = original(*args, **kwargs)
            self.ends(result)
            return result

        return step


class _Before(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        # torch passes the optimizer itself as the first of the arguments.
        return self.owner.before(args, kwargs, 1)


class _After(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.owner.ends(None)
