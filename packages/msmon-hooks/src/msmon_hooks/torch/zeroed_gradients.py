"""Gradients that a program sets to zero where they lie, instead of letting go of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from msmon_hooks.guard import Guarded
from msmon_hooks.interception import intercept
from msmon_hooks.registrations import Registrations


class ZeroedGradients:
    """Knows which gradients `zero_grad(set_to_none=False)` of an optimizer or a module has left.

    Example:
        >>> weight = nn.Parameter(torch.ones(2)); optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> zeroed, owned = ZeroedGradients(Guarded("an example")), Registrations()
        >>> zeroed.watch(owned)
        >>> weight.sum().backward(); optimizer.zero_grad(set_to_none=False); zeroed.has(weight)
        True
        >>> weight.sum().backward(); zeroed.has(weight)
        False
        >>> owned.close()
    """

    def __init__(self, guard: Guarded) -> None:
        self._guard = guard
        self._left: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        """By `id` of the parameter, the gradient and its version."""

    def watch(self, registrations: Registrations) -> None:
        """Begin, until the registrations are closed."""
        for function in (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad):
            if isinstance(function, FunctionType):
                registrations.callback(intercept(function, self._around))
        registrations.callback(self._left.clear)

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient of a parameter is zero since then: nothing was added to it."""
        left, gradient = self._left.get(id(parameter)), parameter.grad
        return left is not None and left[0]() is gradient and gradient is not None and left[1] == gradient._version

    def _around(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        if not kwargs.get("set_to_none", args[1] if len(args) > 1 else True):
            self._guard.run(self._zeroed, args[0])
        return result

    def _zeroed(self, owner: Any) -> None:
        self._left.clear()
        for parameter in _parameters_of(owner):
            if parameter.grad is not None:
                self._left[id(parameter)] = weakref.ref(parameter.grad), parameter.grad._version


def _parameters_of(owner: Any) -> Iterable[torch.Tensor]:
    if isinstance(owner, nn.Module):
        return owner.parameters()
    return (parameter for group in owner.param_groups for parameter in group["params"])
