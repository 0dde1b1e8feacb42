"""Settings of MindSpore's Adam-like optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msmon_hooks.adam import AdamSettings
from msmon_hooks.mindspore.moments import parameters_of, step_counter
from msmon_hooks.optimizer_group import members
from msmon_hooks.parameters import Weight


def adam_settings(optimizer: Any) -> Callable[[Weight], AdamSettings | None]:
    """How the moments of a parameter were accumulated by its optimizer; None where that is none of this kind."""
    every = [AdamGroups(one) for one in members(optimizer)]
    return lambda weight: next((found for one in every if (found := one.settings(weight)) is not None), None)


class AdamGroups:
    """The parameter groups of an optimizer.

    Example:
        >>> from mindspore import nn
        >>> dense = nn.Dense(2, 2); adam = nn.Adam(dense.trainable_params(), beta1=0.8)
        >>> found = AdamGroups(adam).settings(Weight(name="weight", vpp_stage=0, index=0, parameter=dense.weight))
        >>> round(found.betas[0], 3), round(found.betas[1], 3)
        (0.8, 0.999)
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        groups = [group for group in getattr(optimizer, "param_groups", ()) if "betas" in group and "eps" in group]
        self._groups: dict[int, Mapping[str, Any]] = {
            id(parameter): group for group in groups for parameter in group["params"]
        }
        self._known = set(map(id, parameters_of(optimizer)))
        self._common = _common_settings(optimizer) if not groups else None

    def settings(self, weight: Weight) -> AdamSettings | None:
        """Those of the parameter's group; None where the optimizer is none of this kind."""
        if id(weight.parameter) not in self._known:
            return None
        step = step_counter(self._optimizer, weight.parameter)
        if step is None:
            return None
        group = self._groups.get(id(weight.parameter))
        if group is not None:
            first, second = (float(beta) for beta in group["betas"][:2])
            return AdamSettings(betas=(first, second), eps=float(group["eps"]), step=step)
        if self._common is None:
            return None
        first, second, eps = self._common
        return AdamSettings(betas=(first, second), eps=eps, step=step)


def _common_settings(optimizer: Any) -> tuple[float, float, float] | None:
    """The constants that MindSpore's own optimizers keep as tensors."""
    values: list[Any] = [getattr(optimizer, name, None) for name in ("beta1", "beta2", "eps")]
    if any(value is None for value in values):
        return None
    first, second, eps = (float(value.asnumpy()) if hasattr(value, "asnumpy") else float(value) for value in values)
    return first, second, eps
