"""Forwards of the root module: which of them belong to the training, and where their backwards begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msmon_hooks.call_hooks import AfterCall, BeforeCall, ModuleCalls
from msmon_hooks.clock import Clock
from msmon_hooks.framework import Framework
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.names import tensor_leaves


class TrainingForwards:
    """Tells the clock when a training forward of the root begins, and the hooks whether one is running.

    An evaluation between two steps (without gradients, or with a root in evaluation mode) is not part of the training.
    """

    def __init__(self, framework: Framework, models: Sequence[Any], clock: Clock, part: Guarded) -> None:
        self.framework = framework
        self.clock = clock
        self.part = part
        self.before_sampled: list[Callable[[], None]] = []
        """Called before the first training forward of a sampled step, while nothing of the model runs."""
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
        if self.framework.in_backward():
            return
        self._depth[stage] += 1
        if self._depth[stage] > 1:
            return
        training = self._inside[stage] = self._training(stage)
        if training:
            if self.clock.sampled and not self.clock.in_step:
                for check in self.before_sampled:
                    check()
            self.clock.forward_begins(stage)

    def leave(self, stage: int, output: Any) -> None:
        """A forward of a root has ended, or raised (`output` is None)."""
        if self.framework.in_backward() or not self._depth[stage]:
            return
        self._depth[stage] -= 1
        if self._depth[stage]:
            return
        if self._inside[stage] and self.clock.sampled:
            reached = _BackwardReaches(self, self.clock.step, self.clock.micro_step_of(stage))
            framework = self.framework
            for _, tensor in tensor_leaves(output, framework.is_tensor):
                if framework.can_have_gradient(tensor) and not framework.is_leaf(tensor):
                    framework.register_hook(tensor, reached)
        self._inside[stage] = None

    def recording(self, stage: int) -> bool:
        """Whether a module that runs now belongs to the training.

        Inside a training forward all modules do, also those that run under `no_grad` (reentrant checkpointing,
        frozen towers) or in evaluation mode (frozen BatchNorm). A module that is called on its own does when
        a forward of its root would.
        """
        inside = self._inside[stage]
        return inside if inside is not None else self._training(stage)

    def _training(self, stage: int) -> bool:
        return bool(self._roots) and self.framework.is_training(self._roots[stage])


class _RootEnters(BeforeCall):
    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        self.owner = owner
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.part.run(self.owner.enter, self.stage)


class _RootLeaves(AfterCall):
    always = True

    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        self.owner = owner
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.part.run(self.owner.leave, self.stage, output)


class _BackwardReaches(Hook):
    """Sits on the outputs of the root; the first of them that a backward reaches tells the clock."""

    def __init__(self, owner: TrainingForwards, step: int, micro_step: int) -> None:
        self.owner = owner
        self.step = step
        self.micro_step = micro_step

    def __call__(self, gradient: Any) -> None:
        clock = self.owner.clock
        if clock.step == self.step:
            self.owner.part.run(clock.backward_reaches, self.micro_step)
