"""The weights that a monitor looks at: names, aliases, and why some are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import field, frozen
from torch import nn

from msmon_hooks.names import plain_name
from msmon_hooks.targets import Targets
from msmon_hooks.torch.wrappers import wrapper_prefix


@frozen(kw_only=True, eq=False)
class Weight:
    """One parameter of a model. A tied parameter is one weight, under the first of its names."""

    name: str
    vpp_stage: int
    index: int
    """Position in ``named_parameters()``, counted over all model chunks."""
    parameter: nn.Parameter = field(repr=False)
    aliases: tuple[str, ...] = ()
    """Further names of a tied parameter."""


def named_weights(models: Sequence[nn.Module]) -> list[Weight]:
    """Every parameter of the model chunks, in the order of ``named_parameters()``.

    Example:
        >>> [weight.name for weight in named_weights([nn.Linear(2, 3)])]
        ['weight', 'bias']
    """
    found: dict[tuple[int, int], tuple[str, int, nn.Parameter, list[str]]] = {}
    for stage, model in enumerate(models):
        prefix = wrapper_prefix(model)
        for long_name, parameter in model.named_parameters(remove_duplicate=False):
            name = plain_name(long_name, prefix)
            entry = found.setdefault((stage, id(parameter)), (name, stage, parameter, []))
            if entry[0] != name:
                entry[3].append(name)
    return [
        Weight(name=name, vpp_stage=stage, index=index, parameter=parameter, aliases=tuple(aliases))
        for index, (name, stage, parameter, aliases) in enumerate(found.values())
    ]


def split_by_request(
    weights: Sequence[Weight], targets: Targets, trains: Callable[[Weight], bool]
) -> tuple[list[Weight], list[tuple[Weight, str]]]:
    """The weights to monitor, and those left out although they were asked for, each with the reason.

    ``trains`` says whether the optimizer updates a weight.
    """
    taken: list[Weight] = []
    left_out: list[tuple[Weight, str]] = []
    for weight in weights:
        wanted = [targets.parameter(weight.vpp_stage, name) for name in (weight.name, *weight.aliases)]
        if not any(wanted):
            continue
        if not trains(weight):
            frozen_ = not weight.parameter.requires_grad
            left_out.append((weight, "frozen" if frozen_ else "not in the optimizer that was given"))
        else:
            taken.append(weight)
    return taken, left_out


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a tensor."""
    return isinstance(value, torch.Tensor)
