"""Names of the L2 features, and which modules each is computed of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

_SUFFIXES = {
    "attention_hook": "attention",
    "linear_hook": "linear",
    "moe_router_weight_hook": "moe_router",
    "moe_router_logit_hook": "moe_router",
}
# What qualifies for linear_hook without being named: a weight that a gradient reaches, and no embedding.
_EMBEDDING = "embedding"


@frozen(kw_only=True)
class Feature:
    """One kind of feature: of which modules, and how it is computed."""

    modules: tuple[str, ...]
    """Names of modules, with or without a stage prefix. Empty: every module that qualifies (`linear_hook`)."""
    compute: Callable[..., Any]
    """Called with the tensors; returns one number per column, or raises `ValueError` with a reason."""


def l2_name(kind: str, module: str) -> str:
    """The name of a feature's row.

    Example:
        >>> l2_name("linear_hook", "layers.0.fc1")
        'layers.0.fc1.linear'
    """
    return f"{module}.{_SUFFIXES[kind]}"


def has_linear_weight(module: Any, weight: Any) -> bool:
    """Whether `linear_hook` is computed of a module that nobody named: a 2-D weight, but no embedding.

    Args:
        module: the module; only its class names are looked at.
        weight: its `weight` (or `wg`), or None.
    """
    names = [cls.__name__.lower() for cls in type(module).__mro__]
    return weight is not None and len(weight.shape) == 2 and not any(_EMBEDDING in name for name in names)
