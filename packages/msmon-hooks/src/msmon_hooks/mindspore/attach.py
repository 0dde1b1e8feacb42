"""Puts the hooks onto a MindSpore network and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import nn

from msmon_hooks.attachment import Attachment
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer, StepEnd
from msmon_hooks.framework_hooks import Agreement, FrameworkHooks
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import logger
from msmon_hooks.mindspore import recomputation
from msmon_hooks.mindspore.adam import adam_settings
from msmon_hooks.mindspore.call_hooks import CallHooks
from msmon_hooks.mindspore.collectives import CollectiveHooks
from msmon_hooks.mindspore.executor import in_graph_mode
from msmon_hooks.mindspore.framework import MINDSPORE, is_compiled
from msmon_hooks.mindspore.grads.detect import find_source
from msmon_hooks.mindspore.loss_scale import LossScale
from msmon_hooks.mindspore.named_modules import named_modules
from msmon_hooks.mindspore.optimizer_steps import OptimizerSteps
from msmon_hooks.optimizer_group import given_optimizer
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request

_GRAPH_MODE = (
    "MindSpore runs in graph mode: Cells that are compiled run no hooks, so neither activations nor gradients before "
    "the reduction are recorded, and nothing where the whole training step is compiled; "
    "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) makes them visible"
)


def _find_source(models: Sequence[Any], optimizer: Any, recording: Recording) -> GradientSource:
    request = recording.request
    return find_source(
        models,
        optimizer,
        main_grad=request.main_grad,
        process_groups=request.process_groups,
        coverage=recording.coverage,
        micro_steps=recording.clock.grad_acc_steps or 1,
        sums=request.each_micro_step,
    )


def _agreement(sign_agreement: Agreement) -> Agreement:
    # Adam's first momentum is a multiple of the first gradient.
    one = mindspore.Tensor(1.0, mindspore.float32)
    return lambda gradient, momentum: one if momentum is None else sign_agreement(gradient, momentum)


def _prepare(models: Sequence[Any], recording: Recording, registrations: Registrations) -> None:
    """Notice recomputations, and say what no hook will see."""
    recomputation.watch(registrations)
    compiled = [name for (_, name), module in named_modules(models).items() if _compiled(module)]
    if in_graph_mode():
        text = _GRAPH_MODE
    elif compiled:
        names = ", ".join(name or "(root)" for name in compiled)
        text = f"compiled by jit, so that nothing inside is recorded: {names}"
    else:
        return
    logger.warning("%s", text)
    recording.coverage.note(text)


def _compiled(module: Any) -> bool:
    return isinstance(module, nn.Cell) and is_compiled(module)


HOOKS = FrameworkHooks(
    framework=MINDSPORE,
    optimizer_steps=OptimizerSteps,
    collective_rows=CollectiveHooks,
    loss_scale=LossScale,
    call_hooks=CallHooks,
    named_modules=named_modules,
    find_source=_find_source,
    adam_settings=adam_settings,
    agreement=_agreement,
    prepare=_prepare,
)


def attach(
    models: Sequence[Any],
    optimizer: Any,
    request: Request | None,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
    after_step: Callable[[StepEnd], None] | None = None,
) -> Attachment:
    """Hook the networks and the optimizer; see `msmon_hooks.attachment.Attachment`.

    The models are Cells, or modules of a torch-like adapter; the optimizer is one that is called with gradients, or one
    with a `step` method; a list of several that train the models together; or None, where `Attachment.end_step` ends
    steps.

    Example:
        >>> class Print:
        ...     def measure(self, tensors, scale=None): return [-1] * len(tensors)
        ...     def put(self, values): return -1
        ...     def record(self, refs, handles): print([ref.name for ref in refs])
        ...     def step_end(self, event): print("step", event.step)
        >>> network = nn.Dense(2, 1); optimizer = nn.SGD(network.trainable_params(), 0.1)
        >>> hooks = attach([network], optimizer, Request(weights=True), Clock(), Print(), Coverage())
        >>> gradients = mindspore.value_and_grad(lambda x: network(x).sum(), None, optimizer.parameters)
        >>> _ = optimizer(gradients(mindspore.ops.ones((1, 2)))[1])
        ['weight', 'bias']
        ['weight', 'bias']
        step 0
        >>> hooks.close()
    """
    return Attachment(HOOKS, models, given_optimizer(optimizer), request, clock, observer, coverage, after_step)
