"""Settings of PyTorch's Adam-like optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msmon_hooks.adam import AdamSettings
from msmon_hooks.parameters import Weight
from msmon_hooks.torch.nested_optimizers import nested_optimizers, param_groups, state_of


class AdamGroups:
    """The parameter groups of an optimizer, and of those inside of it, at one moment.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(2)); adam = torch.optim.Adam([weight])
        >>> weight.grad = torch.ones(2); adam.step()
        >>> AdamGroups(adam).settings(Weight(name="w", vpp_stage=0, index=0, parameter=weight))
        AdamSettings(betas=(0.9, 0.999), eps=1e-08, step=tensor(1.))
    """

    def __init__(self, optimizer: Any) -> None:
        optimizers = nested_optimizers(optimizer)
        self._states = [state for one in optimizers if (state := state_of(one)) is not None]
        groups = [group for group in param_groups(optimizer) if "betas" in group and "eps" in group]
        self._first = groups[0] if groups else None
        self._groups: dict[int, Mapping[str, Any]] = {}
        for group in groups:
            for parameter in group["params"]:
                self._groups.setdefault(id(parameter), group)

    def settings(self, weight: Weight) -> AdamSettings | None:
        """Those of the parameter's group; None where the optimizer is none of this kind, or has not stepped yet.

        Engines that optimize copies of the parameters have groups of their own: there the first group's are taken.
        """
        group = self._groups.get(id(weight.parameter), self._first)
        if group is None:
            return None
        known = id(weight.parameter) in self._groups
        states = (states.get(weight.parameter) for states in self._states)
        state = next((one for one in states if isinstance(one, Mapping) and "step" in one), None)
        if state is None and not known:
            state = next((one for states in self._states for one in states.values()), None)
        step = state.get("step") if isinstance(state, Mapping) else None
        step = group.get("step") if step is None else step
        if step is None:
            return None
        return AdamSettings(betas=tuple(group["betas"][:2]), eps=group["eps"], step=step)
