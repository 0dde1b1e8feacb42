"""Checks of the arguments of `set_monitor`: scripts swap them easily, and the message has to name the one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def check_integer(name: str, value: object, lowest: int) -> None:
    """TypeError for anything but an integer (a bool is none), ValueError below `lowest`."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"set_monitor: {name} must be an integer, got {type(value).__name__}")
    if value.__index__() < lowest:  # type: ignore[attr-defined]
        raise ValueError(f"set_monitor: {name} must be at least {lowest}, got {value}")


def check_optimizers(optimizer: object, methods: Sequence[str]) -> None:
    """TypeError for one, or one of a list, that has none of the methods by which optimizers of the framework update
    weights, and for an empty list."""
    every = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    if not every:
        raise TypeError("set_monitor: optimizer is an empty list")
    for one in every:
        if not any(callable(getattr(one, method, None)) for method in methods):
            wanted = " or ".join(f"{method}()" for method in methods)
            raise TypeError(f"set_monitor: optimizer must have a method {wanted}, got {type(one).__name__}")


def find_models(model: Any, kind: str, is_model: Callable[[Any], bool]) -> list[Any]:
    """The model chunks.

    Args:
        model: a model, or a list of them.
        kind: how messages call a model.
        is_model: whether something is one.

    Raises:
        TypeError: it is something else; the message says what.
    """
    models = list(model) if isinstance(model, list | tuple) else [model]
    wrong = [type(one).__name__ for one in models if not is_model(one)]
    if wrong or not models:
        given = wrong[0] if wrong else "an empty list"
        raise TypeError(f"set_monitor: model must be a {kind} or a list of {kind}s, got {given}")
    return models
