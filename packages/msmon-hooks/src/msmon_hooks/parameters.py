"""The weights that a monitor looks at: names, aliases, and why some are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import evolve, field, frozen

from msmon_hooks.coverage import FROZEN
from msmon_hooks.short_names import ShortNames
from msmon_hooks.targets import Targets


@frozen(kw_only=True, eq=False)
class Weight:
    """One parameter of a model. A tied parameter is one weight, under the first of its names."""

    name: str
    vpp_stage: int
    index: int
    """Position in `named_parameters()`, counted over all model chunks."""
    parameter: Any = field(repr=False)
    aliases: tuple[str, ...] = ()
    """Further names of a tied parameter."""


def make_weights(parameters: Iterable[tuple[int, str, Any]]) -> list[Weight]:
    """One weight per parameter and model chunk, in the order given; further names of one are aliases.

    Args:
        parameters: stage, plain name and parameter.

    Example:
        >>> shared = object()
        >>> [(w.name, w.aliases) for w in make_weights([(0, "embedding.weight", shared), (0, "head.weight", shared)])]
        [('embedding.weight', ('head.weight',))]
    """
    found: dict[tuple[int, int], tuple[str, int, Any, list[str]]] = {}
    for stage, name, parameter in parameters:
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

    `trains` says whether the optimizer updates a weight.
    """
    taken: list[Weight] = []
    left_out: list[tuple[Weight, str]] = []
    for weight in weights:
        wanted = [targets.parameter(weight.vpp_stage, name) for name in (weight.name, *weight.aliases)]
        if not any(wanted):
            continue
        if not trains(weight):
            frozen_ = not weight.parameter.requires_grad
            left_out.append((weight, FROZEN if frozen_ else "not in the optimizer that was given"))
        else:
            taken.append(weight)
    return taken, left_out


def shortened(weights: Sequence[Weight], names: ShortNames) -> list[Weight]:
    """The weights under the names that rows carry; the full name becomes an alias."""
    found = []
    for weight in weights:
        short = names(weight.vpp_stage, weight.name)
        same = short == weight.name
        found.append(weight if same else evolve(weight, name=short, aliases=(weight.name, *weight.aliases)))
    return found
