"""Puts the hooks onto a PyTorch model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from msmon_hooks.attachment import Attachment
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer, StepEnd
from msmon_hooks.framework_hooks import FrameworkHooks
from msmon_hooks.optimizer_group import joined
from msmon_hooks.request import Request
from msmon_hooks.torch.adam import AdamGroups
from msmon_hooks.torch.call_hooks import CallHooks, prepare
from msmon_hooks.torch.collectives import CollectiveHooks
from msmon_hooks.torch.compiled import inside_compiled
from msmon_hooks.torch.directions import agreement
from msmon_hooks.torch.framework import TORCH
from msmon_hooks.torch.grads.detect import find_source
from msmon_hooks.torch.loss_scale import LossScale
from msmon_hooks.torch.model_changes import ModelChanges
from msmon_hooks.torch.named_modules import named_modules
from msmon_hooks.torch.optimizer_steps import OptimizerSteps
from msmon_hooks.torch.wrappers import unwrapped_optimizer

HOOKS = FrameworkHooks(
    framework=TORCH,
    optimizer_steps=OptimizerSteps,
    collective_rows=CollectiveHooks,
    loss_scale=LossScale,
    call_hooks=CallHooks,
    named_modules=named_modules,
    find_source=lambda models, optimizer, recording: find_source(
        models,
        optimizer,
        main_grad=recording.request.main_grad,
        process_groups=recording.request.process_groups,
        coverage=recording.coverage,
    ),
    adam_settings=lambda optimizer: AdamGroups(optimizer).settings,
    agreement=agreement,
    model_changes=ModelChanges,
    inside_compiled=lambda *args: inside_compiled(*args, attach),
    prepare=prepare,
)


def attach(
    models: Sequence[nn.Module],
    optimizer: Any,
    request: Request | None,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
    after_step: Callable[[StepEnd], None] | None = None,
) -> Attachment:
    """Hook the model chunks and the optimizer; see `msmon_hooks.attachment.Attachment`. Wrappers are unwrapped.

    `optimizer` is one, a list of several that train the models together, or None, where `Attachment.end_step` ends
    steps.

    Example:
        >>> class Print:
        ...     def measure(self, tensors, scale=None): return [-1] * len(tensors)
        ...     def put(self, values): return -1
        ...     def record(self, refs, handles): print([ref.name for ref in refs])
        ...     def step_end(self, event): print("step", event.step)
        >>> import torch
        >>> model = nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> hooks = attach([model], optimizer, Request(weight_gradients=True), Clock(), Print(), Coverage())
        >>> model(torch.ones(1, 2)).sum().backward(); optimizer.step()
        ['bias']
        ['weight']
        ['weight', 'bias']
        step 0
        >>> hooks.close()
    """
    optimizers = [
        unwrapped_optimizer(one) for one in (optimizer if isinstance(optimizer, list | tuple) else [optimizer])
    ]
    return Attachment(HOOKS, models, joined(optimizers), request, clock, observer, coverage, after_step)
