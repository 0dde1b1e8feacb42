"""Wrappers around a model or an optimizer, and the plain objects inside them."""

from __future__ import annotations

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


def _is_wrapper(module: nn.Module) -> bool:
    return is_a(module, *_MODEL_WRAPPERS)


def wrapper_prefix(model: nn.Module) -> str:
    """The path from `model` to the user's own model, with a dot behind it; empty where there is no wrapper.

    Example:
        >>> wrapper_prefix(nn.DataParallel(nn.Linear(2, 2)))
        'module.'
    """
    prefix = ""
    while _is_wrapper(model):
        found = [(name, inner) for name in _INNER if (inner := model._modules.get(name)) is not None]
        if not found:
            break
        prefix, model = f"{prefix}{found[0][0]}.", found[0][1]
    return prefix


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
