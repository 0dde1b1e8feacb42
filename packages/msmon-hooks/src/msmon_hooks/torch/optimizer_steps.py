"""Notices the optimizer's step: before it, after each closure, and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from msmon_hooks.guard import Part
from msmon_hooks.hooks import Hook
from msmon_hooks.registrations import Registrations


class OptimizerSteps:
    """Calls back at the optimizer's step.

    ``begins()`` comes first, ``evaluated()`` once the gradients are computed, ``ends(result)`` last, with what ``step``
    returned, where that is known. A step that is called with a closure computes its gradients itself: ``evaluated()``
    then comes after each call of the closure, so that the last one stands for the gradients that the final update
    consumed.

    Args:
        part: guards the callbacks.
    """

    def __init__(
        self, part: Part, begins: Callable[[], None], evaluated: Callable[[], None], ends: Callable[[Any], None]
    ) -> None:
        self.active = True
        self.count = 0
        """Steps that have ended."""
        self._part = part
        self._begins = begins
        self._evaluated = evaluated
        self._ends = ends

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """By the optimizer's own hooks, which draw no warning from schedulers; else by wrapping the instance's
        ``step``, which is given back at the end."""
        if _runs_hooks(optimizer):
            registrations.add(optimizer.register_step_pre_hook(_Before(self)))
            registrations.add(optimizer.register_step_post_hook(_After(self)))
        else:
            registrations.patch(optimizer, "step", self._wrapped)
        registrations.callback(self._stop)

    def _stop(self) -> None:
        self.active = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A step begins; returns other arguments where there is a closure."""
        self._part.run(self._begins)
        closure = kwargs.get("closure", args[0] if args else None)
        if not callable(closure):
            self._part.run(self._evaluated)
            return None
        watched = self._watched(closure)
        return (args, {**kwargs, "closure": watched}) if "closure" in kwargs else ((watched, *args[1:]), kwargs)

    def after(self, result: Any = None) -> None:
        """A step has ended."""
        self.count += 1
        self._part.always(self._ends, result)

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            if self.active:
                self._part.run(self._evaluated)
            return loss

        return evaluate

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return _Step(self, original)


def _runs_hooks(optimizer: Any) -> bool:
    """Whether calling ``step`` runs the hooks that ``register_step_pre_hook`` takes.

    ``Optimizer.__init__`` wraps the class's ``step`` for that and marks it; wrappers that only inherit from
    ``Optimizer`` do not call it.
    """
    return hasattr(optimizer, "register_step_pre_hook") and bool(getattr(type(optimizer).step, "hooked", False))


class _Step:
    """Stands in an optimizer for its ``step``. In a copy of that optimizer stands the copy's own ``step``, or the copy
    would update the weights of the original."""

    def __init__(self, owner: OptimizerSteps, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.owner = owner
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.owner.active:
            return self.original(*args, **kwargs)
        args, kwargs = self.owner.before(args, kwargs) or (args, kwargs)
        result = self.original(*args, **kwargs)
        self.owner.after(result)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        # Where the optimizer is being copied, the first argument is the copy, which has no attributes of its own yet.
        original = self.original
        while isinstance(original, _Step):
            original = original.original
        owner = getattr(original, "__self__", None)
        return (functools.partial, (original,)) if owner is None else (getattr, (owner, "step"))


class _Before(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        # torch passes the optimizer itself as the first of the arguments.
        replaced = self.owner.before(args[1:], kwargs) if self.owner.active else None
        return replaced and ((*args[:1], *replaced[0]), replaced[1])


class _After(Hook):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.owner.active:
            self.owner.after()
