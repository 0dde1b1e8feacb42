"""The parameters of a network by plain name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindspore import nn

from msmon_hooks.mindspore.named_modules import wrapper_prefix
from msmon_hooks.names import plain_name
from msmon_hooks.parameters import Weight, make_weights


def named_weights(models: Sequence[Any]) -> list[Weight]:
    """Every parameter of the model chunks, in the order of `parameters_and_names()` (`named_parameters()`).

    The name is the path of attributes that leads to the parameter, as PyTorch has it, not `Parameter.name`, which a
    network may set at will.

    Example:
        >>> [weight.name for weight in named_weights([nn.Dense(2, 3)])]
        ['weight', 'bias']
    """
    return make_weights(_named_parameters(models))


def _named_parameters(models: Sequence[Any]) -> Iterator[tuple[int, str, Any]]:
    for stage, model in enumerate(models):
        prefix = wrapper_prefix(model)
        pairs = model.parameters_and_names() if isinstance(model, nn.Cell) else model.named_parameters()
        first = list(pairs)
        for long_name, parameter in [*first, *_further_names(model, {id(parameter) for _, parameter in first})]:
            yield stage, plain_name(long_name, prefix), parameter


def _further_names(model: Any, known: set[int]) -> Iterator[tuple[str, Any]]:
    """Every name of every parameter: a parameter that several Cells share has several."""
    if not isinstance(model, nn.Cell):
        return
    for cell_name, cell in model.cells_and_names():
        for name, parameter in getattr(cell, "_params", {}).items():
            if id(parameter) in known:
                yield f"{cell_name}.{name}" if cell_name else name, parameter
