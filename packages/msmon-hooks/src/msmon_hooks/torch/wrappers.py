"""Wrappers around a model or an optimizer, and the plain objects inside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

# By class name, so that no engine has to be imported to find out that it is not there.
_MODEL_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "Float16Module", "OptimizedModule"}
)
_INNER = ("_orig_mod", "module")


def is_a(value: object, *names: str) -> bool:
    """Whether a class of one of these names is among the classes of `value`; imports nothing to find out.

    Example:
        >>> is_a(nn.Linear(2, 2), "Module")
        True
    """
    return any(cls.__name__ in names for cls in type(value).__mro__)


def wrapped_models(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a wrapper wraps, and so on to the user's own model, each under its name in the one before."""
    while is_a(model, *_MODEL_WRAPPERS):
        inner = next((name for name in _INNER if model._modules.get(name) is not None), None)
        if inner is None:
            break
        model = model._modules[inner]  # type: ignore[assignment]
        yield inner, model


def wrapper_prefix(model: nn.Module) -> str:
    """The path from `model` to the user's own model, with a dot behind it; empty where there is no wrapper.

    Example:
        >>> wrapper_prefix(nn.DataParallel(nn.Linear(2, 2)))
        'module.'
    """
    return "".join(f"{name}." for name, _ in wrapped_models(model))


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The object whose `step` is a step of the training: what accelerate and similar wrappers hold in `optimizer`.

    The optimizers of DeepSpeed and Megatron hold one too, but call its `step` several times a step, or not at all
    when they skip one.
    """
    # Chained optimizers of Megatron refuse to be asked for theirs.
    while not is_a(optimizer, "DeepSpeedOptimizer", "MegatronOptimizer") and hasattr(optimizer, "optimizer"):
        # accelerate's wrapper inherits from Optimizer, but its step does nothing in most micro-steps.
        if hasattr(optimizer, "register_step_pre_hook") and not is_a(optimizer, "AcceleratedOptimizer"):
            break
        inner = optimizer.optimizer
        if not hasattr(inner, "step") or inner is optimizer:
            break
        optimizer = inner
    return optimizer
