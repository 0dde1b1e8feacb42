"""Where a router of experts has its logits: routers return them alone, among other things, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from msmon_hooks.framework import Framework
from msmon_hooks.names import tensor_leaves

_NONE = "no tensor of floating point among its outputs"


def gating_of(module: Any) -> FunctionType | None:
    """What computes the logits in Megatron's routers, which return probabilities of the chosen experts only."""
    gating = getattr(type(module), "gating", None)
    return gating if isinstance(gating, FunctionType) and callable(getattr(type(module), "routing", None)) else None


def scoring_part(module: Any, framework: Framework) -> Any:
    """The only layer inside that scores several experts by a 2-D weight: what it returns are the logits, if the module
    returns other things. None where the module scores by itself, or nothing inside stands out."""
    if _is_matrix(framework.weight(module)):
        return None
    scoring = [one for one in framework.children(module) if _is_matrix(framework.weight(one))]
    return scoring[0] if len(scoring) == 1 else None


def logits_of(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any, inside: Any, framework: Framework
) -> Any:
    """The logits of one call of a router.

    Args:
        module: the router.
        args, kwargs: what it was called with.
        output: what it has returned.
        inside: what its `scoring_part` has returned in this call, or None.
        framework: of the tensors.

    Raises:
        ValueError: there are none.
    """
    if framework.is_tensor(output):
        # A block with a router in it returns what its experts have made.
        other = inside is not None and tuple(framework.shape(output)[-1:]) != tuple(framework.shape(inside)[-1:])
        return inside if other else output
    leaves = [tensor for _, tensor in tensor_leaves(output, framework.is_tensor) if framework.is_floating(tensor)]
    if inside is not None:
        return inside
    weight = framework.weight(module)
    if _is_matrix(weight):
        experts, width = tuple(weight.shape)
        full = [tensor for tensor in leaves if tuple(framework.shape(tensor)[-1:]) == (experts,)]
        if len(full) == 1:
            return full[0]
        # Scores and logits look the same: computed again from what both were computed of.
        given = (*args, *kwargs.values())
        hidden = [x for x in given if framework.is_tensor(x) and tuple(framework.shape(x)[-1:]) == (width,)]
        if hidden:
            return framework.linear(hidden[0], weight, framework.stored(module, "bias"))
    if not leaves:
        raise ValueError(_NONE)
    return leaves[0]


def _is_matrix(weight: Any) -> bool:
    return weight is not None and len(weight.shape) == 2 and weight.shape[0] > 1
