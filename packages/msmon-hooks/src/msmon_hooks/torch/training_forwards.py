"""Forwards of the root module: which of them belong to the training, and where their backwards begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from msmon_hooks.clock import Clock
from msmon_hooks.guard import Part
from msmon_hooks.names import tensor_leaves
from msmon_hooks.torch.backward import in_backward
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.module_calls import AfterCall, BeforeCall, ModuleCalls
from msmon_hooks.torch.parameters import is_tensor


class TrainingForwards:
    """Tells the clock when a training forward of the root begins, and the hooks whether one is running.

    An evaluation between two steps (``model.eval()`` or ``torch.no_grad()``) is not part of the training.
    """

    def __init__(self, models: Sequence[nn.Module], clock: Clock, part: Part) -> None:
        self.clock = clock
        self.part = part
        self.before_sampled: list[Callable[[], None]] = []
        """Called before a training forward of a sampled step, while nothing of the model runs."""
        self._roots = list(models)
        self._inside: list[bool | None] = [None for _ in models]
        self._depth = [0 for _ in models]

    def attach(self, calls: ModuleCalls) -> None:
        """Hook the beginnings of the roots; call it before other hooks are set, so that these run first."""
        for stage, model in enumerate(self._roots):
            calls.add(model, _RootEnters(self, stage))

    def attach_ends(self, calls: ModuleCalls) -> None:
        """Hook the ends of the roots; call it after all other hooks were set, so that these run last."""
        for stage, model in enumerate(self._roots):
            calls.add(model, _RootLeaves(self, stage))

    def close(self) -> None:
        """Let go of the model."""
        self._roots.clear()
        self.before_sampled.clear()

    def enter(self, stage: int) -> None:
        """A forward of a root begins."""
        if in_backward():
            return
        self._depth[stage] += 1
        if self._depth[stage] > 1:
            return
        training = self._inside[stage] = self._training(stage)
        if training:
            if self.clock.sampled:
                for check in self.before_sampled:
                    check()
            self.clock.forward_begins(stage)

    def leave(self, stage: int, output: Any) -> None:
        """A forward of a root has ended, or raised (``output`` is None)."""
        if in_backward() or not self._depth[stage]:
            return
        self._depth[stage] -= 1
        if self._depth[stage]:
            return
        if self._inside[stage] and self.clock.sampled:
            reached = _BackwardReaches(self, self.clock.step, self.clock.micro_step_of(stage))
            for _, tensor in tensor_leaves(output, is_tensor):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(reached)
        self._inside[stage] = None

    def recording(self, stage: int) -> bool:
        """Whether a module that runs now belongs to the training.

        Inside a training forward all modules do, also those that run under ``no_grad`` (reentrant checkpointing,
        frozen towers) or in evaluation mode (frozen BatchNorm). A module that is called on its own does when
        gradients are enabled and its root is in training mode.
        """
        inside = self._inside[stage]
        return inside if inside is not None else self._training(stage)

    def _training(self, stage: int) -> bool:
        return bool(self._roots) and self._roots[stage].training and torch.is_grad_enabled()


class _RootEnters(BeforeCall):
    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        self.owner = owner
        self.stage = stage

    def fire(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.part.run(self.owner.enter, self.stage)


class _RootLeaves(AfterCall):
    always = True

    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        self.owner = owner
        self.stage = stage

    def fire(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.part.run(self.owner.leave, self.stage, output)


class _BackwardReaches(Hook):
    """Sits on the outputs of the root; the first of them that a backward reaches tells the clock."""

    def __init__(self, owner: TrainingForwards, step: int, micro_step: int) -> None:
        self.owner = owner
        self.step = step
        self.micro_step = micro_step

    def __call__(self, gradient: torch.Tensor) -> None:
        clock = self.owner.clock
        if clock.step == self.step:
            self.owner.part.run(clock.backward_reaches, self.micro_step)
