"""Settings of PyTorch's Adam-like optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msmon_hooks.adam import AdamSettings
from msmon_hooks.parameters import Weight


class AdamGroups:
    """The parameter groups of an optimizer at one moment.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(2)); adam = torch.optim.Adam([weight])
        >>> weight.grad = torch.ones(2); adam.step()
        >>> AdamGroups(adam).settings(Weight(name="w", vpp_stage=0, index=0, parameter=weight))
        AdamSettings(betas=(0.9, 0.999), eps=1e-08, step=tensor(1.))
    """

    def __init__(self, optimizer: Any) -> None:
        states = getattr(optimizer, "state", None)
        self._states: Mapping[Any, Any] = states if isinstance(states, Mapping) else {}
        groups = [group for group in getattr(optimizer, "param_groups", ()) if "betas" in group and "eps" in group]
        self._first = groups[0] if groups else None
        self._groups = {id(parameter): group for group in groups for parameter in group["params"]}

    def settings(self, weight: Weight) -> AdamSettings | None:
        """Those of the parameter's group; None where the optimizer is none of this kind, or has not stepped yet.

        Engines that optimize copies of the parameters have groups of their own: there the first group's are taken.
        """
        group = self._groups.get(id(weight.parameter), self._first)
        if group is None:
            return None
        state = self._states.get(weight.parameter)
        if state is None and id(weight.parameter) not in self._groups:
            state = next(iter(self._states.values()), None)
        step = state.get("step") if isinstance(state, Mapping) else None
        step = group.get("step") if step is None else step
        if step is None:
            return None
        beta1, beta2 = map(float, group["betas"][:2])
        return AdamSettings(betas=(beta1, beta2), eps=float(group["eps"]), step=step)
