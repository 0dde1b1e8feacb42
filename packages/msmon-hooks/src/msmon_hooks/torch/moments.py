"""Optimizer state: the moments of a parameter, under the names that rows carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# SGD's momentum is a first moment too; rows of it are compared with Adam's under one name.
FIRST = ("exp_avg", "momentum_buffer")
SECOND = ("exp_avg_sq",)


def moments(optimizer: Any, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The moments that the optimizer keeps of `parameter` now; empty before its first update.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2)); adam = torch.optim.Adam([weight])
        >>> moments(adam, weight)
        {}
        >>> weight.grad = torch.ones(2); adam.step()
        >>> sorted(moments(adam, weight))
        ['exp_avg', 'exp_avg_sq']
    """
    states = getattr(optimizer, "state", None)
    # A look-up in a defaultdict would create an entry and so change the optimizer.
    state = states.get(parameter) if isinstance(states, Mapping) else None
    if not isinstance(state, Mapping):
        return {}
    found = {}
    for name, keys in (("exp_avg", FIRST), ("exp_avg_sq", SECOND)):
        value = next((state[key] for key in keys if isinstance(state.get(key), torch.Tensor)), None)
        if value is not None:
            found[name] = value
    return found
