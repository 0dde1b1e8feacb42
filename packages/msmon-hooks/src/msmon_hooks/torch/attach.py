"""Puts the hooks onto a PyTorch model and its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from msmon_hooks import attachment
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.torch.adam import AdamGroups
from msmon_hooks.torch.collectives import CollectiveHooks
from msmon_hooks.torch.collectives.writes import writes
from msmon_hooks.torch.directions import agreement
from msmon_hooks.torch.framework import TORCH
from msmon_hooks.torch.grads.detect import find_source
from msmon_hooks.torch.grads.source import GradientSource
from msmon_hooks.torch.groups import Groups
from msmon_hooks.torch.loss_scale import LossScale
from msmon_hooks.torch.model_changes import ModelChanges
from msmon_hooks.torch.module_calls import ModuleCalls
from msmon_hooks.torch.named_modules import named_modules
from msmon_hooks.torch.optimizer_steps import OptimizerSteps
from msmon_hooks.torch.wrappers import unwrapped_optimizer


class Attachment(attachment.Attachment):
    """See `msmon_hooks.attachment.Attachment`.

    Example:
        >>> from msmon_hooks import Clock, Coverage, Request
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

    framework = TORCH
    _module_calls = ModuleCalls
    _collective_hooks = CollectiveHooks
    _loss_scale = LossScale
    _adam_settings = staticmethod(lambda optimizer: AdamGroups(optimizer).settings)
    _agreement = staticmethod(agreement)
    _named_modules = staticmethod(named_modules)
    loss_scale: LossScale

    def __init__(self, models: Sequence[nn.Module], optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(models, unwrapped_optimizer(optimizer), *args, **kwargs)

    def retire(self) -> None:
        """Take the hooks off from inside a step's callback.

        Hooks of the optimizer cannot be removed while it runs through them, so these go when the next forward of
        the root begins.
        """
        self.registrations.close()
        if len(self.step_registrations) and self._models:
            self.step_registrations.add(self._models[0].register_forward_pre_hook(_CloseOnForward(self)))

    def _make_steps(self) -> OptimizerSteps:
        return OptimizerSteps(
            self._parts("steps"), lambda args, kwargs: self._step_begins(), self._evaluated, self._step_ends
        )

    def _find_source(self) -> GradientSource:
        request = self._request
        return find_source(
            self._models,
            self._optimizer,
            main_grad=request.main_grad,
            groups=request.groups or Groups(),
            coverage=self._coverage,
        )

    def _hook(self) -> None:
        super()._hook()
        if self.forwards is not None:
            changes = ModelChanges(self._models, self._optimizer, self._model_changed)
            self.registrations.callback(changes.close)
            changing = self._parts("changes of the model")
            self.forwards.before_sampled.append(lambda: changing.run(changes.check))

    def _model_changed(self) -> None:
        self._calls.refresh()
        super()._model_changed()

    def _hook_collectives(self) -> None:
        if self._modules is not None and self._modules.activations is not None:
            writes.watch(self.registrations)
        super()._hook_collectives()

    def _step_begins(self) -> None:
        if self._clock.sampled:
            # A root that was compiled meanwhile calls no hook that could have noticed.
            self._calls.refresh()
        super()._step_begins()


class _CloseOnForward(Hook):
    def __init__(self, owner: Attachment) -> None:
        self.owner = owner

    def __call__(self, module: nn.Module, args: Any) -> None:
        Guarded("the end of collection").run(self.owner.close)


attach = Attachment.attach
