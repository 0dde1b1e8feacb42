"""Hugging Face's attention modules: they are called with hidden states, and hand queries and keys to a function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

_REGISTRY = "ALL_ATTENTION_FUNCTIONS"


def attention_functions(module: Any) -> list[FunctionType]:
    """The functions to one of which the module hands itself, queries, keys and values; none of other modules."""
    forward = inspect.unwrap(getattr(type(module), "forward", len))
    if not isinstance(forward, FunctionType) or "attention_interface" not in forward.__code__.co_varnames:
        return []
    code = sys.modules.get(forward.__module__)
    registry = getattr(code, _REGISTRY, None)
    registered = registry.values() if isinstance(registry, Mapping) else ()
    found = [getattr(code, "eager_attention_forward", None), *registered]
    return [function for function in found if isinstance(function, FunctionType)]


def given_queries_and_keys(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]
) -> list[Any]:
    """Queries and keys among the arguments of a module: by name, else the first of 4 dimensions, else the first.

    Example:
        >>> given_queries_and_keys((), {"key": 1.5, "query": 2.5}, lambda x: isinstance(x, float))
        [2.5, 1.5]
    """
    named = [kwargs[name] for name in ("query", "key") if is_tensor(kwargs.get(name))]
    tensors = [value for value in (*args, *kwargs.values()) if is_tensor(value)]
    if len(named) == 2 or len(tensors) < 2:
        return named if len(named) == 2 else tensors
    full = [tensor for tensor in tensors if len(tensor.shape) == 4]
    return full if len(full) > 1 else tensors


def queries_and_keys(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Of the arguments of such a function, `[batch, sequence, head, head size]` each."""
    given = dict(zip(("module", "query", "key"), args, strict=False)) | dict(kwargs)
    return [given[name].swapaxes(1, 2) for name in ("query", "key")]


def will_do(modules: Mapping[tuple[int, str], Any]) -> str:
    """A hint with names of modules that `attention_hook` can be computed of."""
    names = [name for (_, name), module in modules.items() if attention_functions(module) or _takes_both(module)]
    more = "" if len(names) < 4 else f" and {len(names) - 3} more"
    named = f"; these will do: {', '.join(names[:3])}{more}" if names else ""
    return f"it has to be called with Q and K of 4 dimensions{named}"


def _takes_both(module: Any) -> bool:
    """Megatron's cores and those that are built like them."""
    return "DotProductAttention" in {cls.__name__ for cls in type(module).__mro__}
