"""Backwards of a pipeline's stage that compute the gradients of weights alone, those of inputs being there already.

Zero-bubble schedules split a backward in two. The second part begins in the midst of the graph: tensor hooks there are
called again, with sums that are no gradient, and what comes out is written to `.grad` past autograd's accumulation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

from msmon_hooks.guard import Guarded
from msmon_hooks.registrations import Registrations

_STAGES = "torch.distributed.pipelining.stage"
_METHOD = "backward_weight_one_chunk"

Ended = Callable[[nn.Module, int], None]
"""Called with the module of a stage and the number of its micro-step."""


class WeightPass:
    """The one that is running in this process, or was last."""

    running = False
    accumulated: ClassVar[set[int]] = set()
    """`id` of the parameters that autograd has accumulated in it."""


def watch(registrations: Registrations) -> None:
    """Keep `WeightPass` until the registrations are closed, where the program has imported pipelines."""
    _patch(_keeping, registrations)


def after_each(guard: Guarded, ended: Ended, registrations: Registrations) -> None:
    """Call `ended` after each, until the registrations are closed. What it leads to is kept alive as long."""
    _patch(functools.partial(_telling, guard, ended), registrations)


def _patch(make: Callable[[Any], Any], registrations: Registrations) -> None:
    stages = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
    if hasattr(stages, _METHOD):
        registrations.patch(stages, _METHOD, make)


def _keeping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward_weight_one_chunk(*args: Any, **kwargs: Any) -> Any:
        WeightPass.running, WeightPass.accumulated = True, set()
        try:
            return original(*args, **kwargs)
        finally:
            WeightPass.running = False

    return backward_weight_one_chunk


def _telling(guard: Guarded, ended: Ended, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward_weight_one_chunk(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        result = original(stage, bwd_chunk_id, *args, **kwargs)
        guard.run(ended, stage.submod, bwd_chunk_id)
        return result

    return backward_weight_one_chunk
