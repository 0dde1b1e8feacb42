"""Notices the optimizer's step: the call of a MindSpore optimizer, or the ``step()`` of an adapter's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import nn

from msmon_hooks.call_hooks import AfterCall, BeforeCall
from msmon_hooks.guard import Part
from msmon_hooks.mindspore.module_calls import ModuleCalls
from msmon_hooks.registrations import Registrations


class OptimizerSteps:
    """Calls back at the optimizer's step: ``begins(gradients)`` before it, ``ends()`` after it.

    ``gradients`` are those that the optimizer is called with, in the order of its parameters; None for an optimizer
    that reads them from the parameters.

    Args:
        part: guards both callbacks.
    """

    def __init__(self, part: Part, begins: Callable[[Sequence[Any] | None], None], ends: Callable[[], None]) -> None:
        self.active = True
        self.count = 0
        """Steps that have ended."""
        self._part = part
        self._begins = begins
        self._ends = ends

    def attach(self, optimizer: Any, calls: ModuleCalls, registrations: Registrations) -> None:
        """By watching calls of the optimizer, else by wrapping the instance's ``step``, which is given back."""
        if is_called_with_gradients(optimizer):
            calls.add(optimizer, _Before(self))
            calls.add(optimizer, _After(self))
        else:
            registrations.patch(optimizer, "step", self._wrapped)
        registrations.callback(self._stop)

    def _stop(self) -> None:
        self.active = False

    def before(self, gradients: Sequence[Any] | None) -> None:
        """A step begins."""
        self._part.run(self._begins, gradients)

    def after(self) -> None:
        """A step has ended."""
        self.count += 1
        self._part.always(self._ends)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            self.before(gradients_in(args, kwargs))
            result = original(*args, **kwargs)
            self.after()
            return result

        return step


def is_called_with_gradients(optimizer: Any) -> bool:
    """Whether a step is a call of the optimizer, as with all of MindSpore's own."""
    return isinstance(optimizer, nn.Cell) and type(optimizer).construct is not nn.Cell.construct


def gradients_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any] | None:
    """The gradients among the arguments of a step, or None where there are none."""
    value = args[0] if args else next(iter(kwargs.values()), None)
    if isinstance(value, mindspore.Tensor):
        return (value,)
    return value if isinstance(value, list | tuple) else None


class _Before(BeforeCall):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.before(gradients_in(args, kwargs))


class _After(AfterCall):
    def __init__(self, owner: OptimizerSteps) -> None:
        self.owner = owner

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.after()
