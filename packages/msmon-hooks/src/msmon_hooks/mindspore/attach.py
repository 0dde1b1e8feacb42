"""Puts the hooks onto a MindSpore network and its optimizer."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import nn

from msmon_hooks import attachment
from msmon_hooks.guard import logger
from msmon_hooks.mindspore import recomputation
from msmon_hooks.mindspore.adam import AdamGroups
from msmon_hooks.mindspore.collectives import CollectiveHooks
from msmon_hooks.mindspore.executor import in_graph_mode
from msmon_hooks.mindspore.framework import MINDSPORE, is_compiled
from msmon_hooks.mindspore.grads.detect import find_source
from msmon_hooks.mindspore.grads.source import GradientSource
from msmon_hooks.mindspore.groups import Groups
from msmon_hooks.mindspore.loss_scale import LossScale
from msmon_hooks.mindspore.module_calls import ModuleCalls
from msmon_hooks.mindspore.named_modules import named_modules
from msmon_hooks.mindspore.optimizer_steps import OptimizerSteps, gradients_in
from msmon_hooks.weight_readers import Agreement

_GRAPH_MODE = (
    "MindSpore runs in graph mode: Cells that are compiled run no hooks, so neither activations nor gradients before "
    "the reduction are recorded, and nothing where the whole training step is compiled; "
    "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) makes them visible"
)
_NOT_CALLED = (
    "no call of the network was seen in a recorded step: where a function that jit compiles calls it, nothing of its "
    "Cells is recorded"
)


class Attachment(attachment.Attachment):
    """See `msmon_hooks.attachment.Attachment`.

    The models are Cells, or modules of a torch-like adapter; the optimizer is one that is called with gradients, or one
    with a `step` method.

    Example:
        >>> from msmon_hooks import Clock, Coverage, Request
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

    framework = MINDSPORE
    _module_calls = ModuleCalls
    _collective_hooks = CollectiveHooks
    _loss_scale = LossScale
    _adam_settings = staticmethod(lambda optimizer: AdamGroups(optimizer).settings)
    _named_modules = staticmethod(named_modules)
    _source: GradientSource
    _said = False
    """Whether it was said why no call of the network is seen."""

    def _make_steps(self) -> OptimizerSteps:
        return OptimizerSteps(self._parts("steps"), self._called, self._evaluated, self._step_ends)

    def _find_source(self) -> GradientSource:
        request = self._request
        return find_source(
            self._models,
            self._optimizer,
            main_grad=request.main_grad,
            groups=request.groups or Groups(),
            coverage=self._coverage,
            micro_steps=self._clock.grad_acc_steps,
            sums=request.each_micro_step,
        )

    @staticmethod
    def _agreement(sign_agreement: Agreement) -> Agreement:
        # Adam's first momentum is a multiple of the first gradient.
        one = mindspore.Tensor(1.0, mindspore.float32)
        return lambda gradient, momentum: one if momentum is None else sign_agreement(gradient, momentum)

    def _hook(self) -> None:
        if not self._idle:
            recomputation.watch(self.registrations)
            self._report_compiled()
        super()._hook()

    def _say(self, text: str) -> None:
        logger.warning("%s", text)
        self._coverage.note(text)

    def _report_compiled(self) -> None:
        """Say what no hook will see."""
        self._said = in_graph_mode()
        if self._said:
            self._say(_GRAPH_MODE)
            return
        names = [name or "(root)" for (_, name), module in named_modules(self._models).items() if _compiled(module)]
        if names:
            self._say(f"compiled by jit, so that nothing inside is recorded: {', '.join(names)}")

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The optimizer is called, with gradients unless it reads them from the parameters."""
        self._source.consumes(gradients_in(args, kwargs))
        self._step_begins()

    def _step_ends(self, result: Any = None, *, skipped: bool = False) -> None:
        if not skipped:
            self._source.updated()
        reads = self._modules is not None and self._modules.activations is not None
        if reads and self._clock.sampled and not self._clock.in_step and not self._said:
            self._said = True
            self._say(_NOT_CALLED)
        super()._step_ends(result, skipped=skipped)


def _compiled(module: Any) -> bool:
    return isinstance(module, nn.Cell) and is_compiled(module)


attach = Attachment.attach
