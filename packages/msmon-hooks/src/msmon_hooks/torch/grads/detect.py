"""Which engine trains a model: found by looking at the objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from msmon_hooks.coverage import Coverage
from msmon_hooks.torch.grads.ddp import DDPGradients
from msmon_hooks.torch.grads.deepspeed import DeepSpeedGradients
from msmon_hooks.torch.grads.fsdp1 import FSDP1Gradients
from msmon_hooks.torch.grads.fsdp2 import FSDP2Gradients
from msmon_hooks.torch.grads.megatron import MegatronGradients
from msmon_hooks.torch.grads.plain import PlainGradients
from msmon_hooks.torch.grads.source import GradientSource
from msmon_hooks.torch.grads.tensor_parallel import TensorParallelGradients
from msmon_hooks.torch.process_groups import ProcessGroups

# The first that matches is taken: engines that wrap others come first.
ENGINES: tuple[type[GradientSource], ...] = (
    DeepSpeedGradients,
    FSDP2Gradients,
    FSDP1Gradients,
    MegatronGradients,
    DDPGradients,
    TensorParallelGradients,
    PlainGradients,
)


def find_source(
    models: Sequence[nn.Module],
    optimizer: Any,
    *,
    main_grad: bool,
    process_groups: ProcessGroups | None = None,
    coverage: Coverage | None = None,
) -> GradientSource:
    """The engine of these objects.

    Raises:
        ValueError: the engine is set up in a way that hides the parameters; the message says how to change it.

    Example:
        >>> find_source([nn.Linear(2, 2)], None, main_grad=True).engine
        'plain'
    """
    engine = next(engine for engine in ENGINES if engine.matches(models, optimizer))
    return engine(models, optimizer, main_grad=main_grad, process_groups=process_groups, coverage=coverage)
