"""Which engine trains a model: found by looking at the objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from msmon_hooks.torch.grads.plain import PlainGradients
from msmon_hooks.torch.grads.source import GradientSource

# The first that matches is taken: engines that wrap others come first.
ENGINES: tuple[type[GradientSource], ...] = (PlainGradients,)


def find_source(models: Sequence[nn.Module], optimizer: Any, *, main_grad: bool) -> GradientSource:
    """The engine of these objects.

    Example:
        >>> find_source([nn.Linear(2, 2)], None, main_grad=True).engine
        'plain'
    """
    engine = next(engine for engine in ENGINES if engine.matches(models, optimizer))
    return engine(models, optimizer, main_grad=main_grad)
