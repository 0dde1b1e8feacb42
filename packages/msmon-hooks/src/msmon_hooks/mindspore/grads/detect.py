"""How a network is trained: found by looking at the processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msmon_hooks.mindspore.grads.data_parallel import DataParallelGradients
from msmon_hooks.mindspore.grads.plain import PlainGradients
from msmon_hooks.mindspore.grads.source import GradientSource

ENGINES: tuple[type[GradientSource], ...] = (DataParallelGradients, PlainGradients)


def find_source(models: Sequence[Any], optimizer: Any, **options: Any) -> GradientSource:
    """The engine of these objects; `options` are those of `GradientSource`.

    Example:
        >>> from mindspore import nn
        >>> dense = nn.Dense(2, 2)
        >>> find_source([dense], nn.SGD(dense.trainable_params())).engine
        'plain'
    """
    engine = next(engine for engine in ENGINES if engine.matches(models, optimizer))
    return engine(models, optimizer, **options)
