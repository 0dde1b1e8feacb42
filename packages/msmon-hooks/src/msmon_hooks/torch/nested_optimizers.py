"""The optimizers inside of an optimizer: containers, wrappers, optimizers that run while a backward does."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from msmon_hooks.optimizer_group import members

_DEPTH = 4
_OBJECTS = 4096
_ELEMENTS = 4096
# Tensors and settings of the optimizer itself: nothing that could step.
_SKIPPED = frozenset({"state", "param_groups", "defaults"})


def nested_optimizers(optimizer: Any) -> list[Any]:
    """The optimizer and all that can be reached from its attributes, outermost first, each once.

    Attributes are looked at where they are stored, in `__dict__`: a property of a foreign object may do anything. Where
    the walk is too long (depth, number of objects) it ends.

    Example:
        >>> class Both:
        ...     def __init__(self, *optimizers): self.optimizers = list(optimizers)
        ...     def step(self): ...
        >>> weight = nn.Parameter(torch.ones(2))
        >>> sgd, adam = torch.optim.SGD([weight]), torch.optim.Adam([weight])
        >>> [type(one).__name__ for one in nested_optimizers(Both(sgd, adam))]
        ['Both', 'SGD', 'Adam']
    """
    return _walk(members(optimizer))


def optimizers_in_hooks(parameter: torch.Tensor) -> list[Any]:
    """The optimizers that hooks of a parameter's gradient call, as in training without kept gradients."""
    attributes = getattr(parameter, "__dict__", {})
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    called = _led_to(list(hooks.values()), depth=3, functions=True)
    return _walk([*attributes.get("_in_backward_optimizers", ()), *called])


def state_of(optimizer: Any) -> Mapping[Any, Any] | None:
    """The mapping from parameters to their state, where the optimizer itself has one."""
    state = _attributes(optimizer).get("state")
    return state if isinstance(state, dict | Mapping) else None


def param_groups(optimizer: Any) -> list[Mapping[str, Any]]:
    """The parameter groups of an optimizer and of those inside of it, each once, outermost first."""
    found: dict[int, Mapping[str, Any]] = {}
    inner = (_attributes(one).get("param_groups", ()) for one in nested_optimizers(optimizer))
    # What the script passed is asked as the script would ask it: wrappers hand on what is inside of them.
    for group in chain(getattr(optimizer, "param_groups", ()), chain.from_iterable(inner)):
        if isinstance(group, Mapping) and "params" in group:
            found.setdefault(id(group), group)
    return list(found.values())


def _walk(begin: list[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    level = [one for one in begin if _may_step(one)]
    for _ in range(_DEPTH):
        new = {id(one): one for one in level if id(one) not in found}
        if not new or len(found) + len(new) > _OBJECTS:
            break
        found |= new
        values = (value for one in new.values() for name, value in _attributes(one).items() if name not in _SKIPPED)
        level = [one for one in _led_to(values) if id(one) not in found]
    return list(found.values())


def _led_to(values: Any, depth: int = 2, *, functions: bool = False) -> Iterator[Any]:
    """The objects that may be optimizers among values, in containers, and in what functions refer to."""
    for value in values:
        if isinstance(value, list | tuple | Mapping):
            inside: Any = value.values() if isinstance(value, Mapping) else value
        elif functions and isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            inside = _referred_to(value)
        else:
            if _may_step(value):
                yield value
            continue
        if depth:
            yield from _led_to(islice(inside, _ELEMENTS), depth - 1, functions=functions)


def _referred_to(function: Any) -> Iterator[Any]:
    if isinstance(function, types.MethodType):
        yield function.__self__
        yield function.__func__
    elif isinstance(function, functools.partial):
        yield from (function.func, *function.args, *function.keywords.values())
    else:
        yield from function.__defaults__ or ()
        yield from chain.from_iterable(_content(cell) for cell in function.__closure__ or ())
        yield from (function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__)


def _content(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing was assigned to the variable yet
        return ()


def _may_step(value: Any) -> bool:
    if isinstance(value, type | torch.Tensor | nn.Module | torch.optim.lr_scheduler.LRScheduler):
        return False
    # Asked of the class: the instance may answer any question by code of its own.
    return callable(getattr(type(value), "step", None)) or "param_groups" in _attributes(value)


def _attributes(value: Any) -> Mapping[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
