"""Forwards of the root module: which of them belong to the training, and where their backwards begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.names import tensor_leaves
from msmon_hooks.recording import Recording


class TrainingForwards:
    """Tells the clock when a training forward of the root begins, and the hooks whether one is running.

    An evaluation between two steps (without gradients, or with a root in evaluation mode) is not part of the training.
    """

    def __init__(self, recording: Recording, models: Sequence[Any], guard: Guarded) -> None:
        self.guard = guard
        self.clock = recording.clock
        self.before: list[Callable[[], None]] = []
        """Called before each training forward of a root."""
        self._framework = recording.framework
        self._roots = list(models)
        self._inside: list[bool | None] = [None for _ in models]
        self._depth = [0 for _ in models]

    def attach(self, call_hooks: CallHooks) -> None:
        """Hook the beginnings of the roots; call it before other hooks are set, so that these run first."""
        for stage, model in enumerate(self._roots):
            call_hooks.add(model, _RootEnters(self, stage))

    def attach_ends(self, call_hooks: CallHooks) -> None:
        """Hook the ends of the roots; call it after all other hooks were set, so that these run last."""
        for stage, model in enumerate(self._roots):
            call_hooks.add(model, _RootLeaves(self, stage))

    def close(self) -> None:
        """Let go of the model."""
        self._roots.clear()
        self.before.clear()

    def enter(self, stage: int) -> None:
        """A forward of a root begins."""
        if self._framework.in_backward():
            return
        self._depth[stage] += 1
        if self._depth[stage] > 1:
            return
        training = self._inside[stage] = self._training(stage)
        if training:
            for call in self.before:
                call()
            self.clock.forward_begins(stage)

    def leave(self, stage: int, output: Any) -> None:
        """A forward of a root has ended, or raised (`output` is None)."""
        if self._framework.in_backward() or not self._depth[stage]:
            return
        self._depth[stage] -= 1
        if self._depth[stage]:
            return
        if self._inside[stage] and self.clock.sampled:
            reached = _BackwardReaches(self, self.clock.step, self.clock.micro_step_of(stage))
            framework = self._framework
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
        return bool(self._roots) and self._framework.is_training(self._roots[stage])


class _RootEnters(BeforeCall):
    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.enter(self.stage)


class _RootLeaves(AfterCall):
    always = True

    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.leave(self.stage, output)


class _BackwardReaches(Hook):
    """Sits on the outputs of the root; the first of them that a backward reaches tells the clock."""

    def __init__(self, owner: TrainingForwards, step: int, micro_step: int) -> None:
        super().__init__(owner.guard)
        self.clock = owner.clock
        self.step = step
        self.micro_step = micro_step

    def fire(self, gradient: Any) -> None:
        if self.clock.step == self.step:
            self.clock.backward_reaches(self.micro_step)
