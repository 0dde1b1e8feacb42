"""Notices an optimizer's step: before it, once its gradients are computed, and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from msmon_hooks.guard import Guarded
from msmon_hooks.registrations import Registrations

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class OptimizerSteps:
    """Calls back at the steps of an optimizer that has a method `step`.

    `begins(args, kwargs)` comes first, with what the step is called with, `evaluated()` once the gradients are
    computed, `ends(result)` last, with what `step` returned, where that is known. A step that is called with a
    closure computes its gradients itself: `evaluated()` then comes after each call of the closure, so that the last
    one stands for the gradients that the final update consumed.

    Args:
        part: guards the first two callbacks.

    Example:
        >>> class Optimizer:
        ...     def step(self): print("update")
        >>> optimizer, owned = Optimizer(), Registrations()
        >>> steps = OptimizerSteps(
        ...     Guarded("steps"), lambda *_: print("begins"), lambda: print("evaluated"), lambda _: print("ends")
        ... )
        >>> steps.attach(optimizer, owned); optimizer.step()
        begins
        evaluated
        update
        ends
        >>> owned.close(); "step" in vars(optimizer)
        False
    """

    def __init__(
        self,
        part: Guarded,
        begins: Callable[[tuple[Any, ...], dict[str, Any]], None],
        evaluated: Callable[[], None],
        ends: Callable[[Any], None],
    ) -> None:
        self.active = True
        self.count = 0
        """Steps that have ended."""
        self._part = part
        self._begins = begins
        self._evaluated = evaluated
        self._ends = ends

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """Begin to notice steps; `registrations` end it."""
        self.hook(optimizer, registrations)
        registrations.callback(self._stop)

    def hook(self, optimizer: Any, registrations: Registrations) -> None:
        """By wrapping the instance's `step`. A framework knows better ways for its own optimizers."""
        registrations.patch(optimizer, "step", lambda original: _Step(self, original))

    def _stop(self) -> None:
        self.active = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A step begins; returns other arguments where there is a closure."""
        self._part.run(self._begins, args, kwargs)
        closure = kwargs.get("closure", args[0] if args else None)
        if not callable(closure):
            self._part.run(self._evaluated)
            return None
        watched = self._watched(closure)
        return (args, {**kwargs, "closure": watched}) if "closure" in kwargs else ((watched, *args[1:]), kwargs)

    def evaluated(self) -> None:
        """A closure has computed the gradients."""
        if self.active:
            self._part.run(self._evaluated)

    def after(self, result: Any = None) -> None:
        """A step has ended."""
        self.count += 1
        self._part.always(self._ends, result)

    def _watched(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            self.evaluated()
            return loss

        return evaluate


class _Step:
    """Stands in an optimizer for its `step`. In a copy of that optimizer stands the copy's own `step`, or the copy
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
