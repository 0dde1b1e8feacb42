"""The Cells of a network by plain name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindspore import nn

from msmon_hooks.names import plain_name

# What MindSpore puts around a network, and where the network is in it.
_WRAPPERS = {
    "WithLossCell": "_backbone",
    "TrainOneStepCell": "network",
    "TrainOneStepWithLossScaleCell": "network",
}
_RECOMPUTATION = "_recompute_cell"


def named_modules(models: Sequence[Any]) -> dict[tuple[int, str], Any]:
    """Stage and plain name to Cell. A wrapper and what it wraps share a name: the inner one is taken.

    Example:
        >>> list(named_modules([nn.SequentialCell(nn.Dense(2, 2))]))
        [(0, ''), (0, '0')]
    """
    found = {}
    for stage, model in enumerate(models):
        prefix = wrapper_prefix(model)
        for long_name, module in _pairs(model):
            if _RECOMPUTATION not in long_name.split("."):
                found[stage, plain_name(long_name, prefix)] = module
    return found


def wrapper_prefix(model: Any) -> str:
    """The path from `model` to the user's own network, with a dot behind it; empty where there is no wrapper.

    Example:
        >>> wrapper_prefix(nn.WithLossCell(nn.Dense(2, 2), nn.MSELoss()))
        '_backbone.'
    """
    prefix = ""
    while isinstance(model, nn.Cell) and (inner := _inner_name(model)) is not None:
        prefix, model = f"{prefix}{inner}.", getattr(model, inner)
    return prefix


def _inner_name(cell: nn.Cell) -> str | None:
    names = (_WRAPPERS.get(cls.__name__) for cls in type(cell).__mro__ if cls.__module__.startswith("mindspore."))
    return next((name for name in names if name is not None and isinstance(getattr(cell, name, None), nn.Cell)), None)


def _pairs(model: Any) -> Iterator[tuple[str, Any]]:
    """Name and module; modules of adapters have torch's method."""
    yield from model.cells_and_names() if isinstance(model, nn.Cell) else model.named_modules()
