"""Forwards of the root module: which of them belong to the training, and where their backwards begin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.names import tensor_leaves
from msmon_hooks.recording import Recording


class TrainingForwards:
    """Tells the clock when a training forward of the root begins, and the hooks whether one is running.

    * An evaluation between two steps (without gradients, or with a root in evaluation mode) is not part of the
      training; nor is what another thread does without gradients. A root that is trained in evaluation mode was never
      in training mode, or a backward has begun at its output.
      Nor is what a pipeline runs before a step to find out shapes.
    * A module that is called before its root begins the step's first micro-step; where the root itself is never called,
      so does the first after each backward.
    * A forward whose gradients are gone again when the next one, or its backward, begins is none of the step's: the
      discriminator's in the step of the generator.
    """

    def __init__(self, recording: Recording, models: Sequence[Any], guard: Guarded) -> None:
        self.guard = guard
        self.clock = recording.clock
        self.before: list[Callable[[], None]] = []
        """Called before each training forward of a root."""
        self.dropped: Callable[[], bool] = lambda: False
        """Whether there is no gradient of any parameter, although a backward has run: nobody will consume it."""
        self.restarted: list[Callable[[], None]] = []
        """Called where what has run so far in this step turns out to be no training."""
        self._framework = recording.framework
        self._observer = recording.observer
        self._roots = list(models)
        self._running = _Running(len(models))
        self._open = [0 for _ in models]
        """Training forwards that are running, in whatever thread."""
        self._called = [False for _ in models]
        """Whether the root itself was called."""
        self._alone = [False for _ in models]
        """Whether the micro-step in flight began with a call of one of its modules."""
        self._in_eval: list[bool | None] = [None for _ in models]
        """Whether it is trained in evaluation mode; None: it was never in training mode."""
        self._reached: dict[tuple[int, int], int] = {}
        """Stage and micro-step of the forwards whose backward has begun, and the number of that backward."""
        self.earliest: int | None = None
        """The first micro-step of this step that a backward has reached. Those before did not train: their output was
        cut off (`detach`). None: no backward has, or there are chunks of a virtual pipeline, which begin together."""
        self._step = self.clock.step

    def attach(self, call_hooks: CallHooks) -> None:
        """Hook the beginnings of the roots; call it before other hooks are set, so that these run first."""
        for stage, model in enumerate(self._roots):
            for root in self._framework.roots(model):
                call_hooks.add(root, _RootEnters(self, stage))

    def attach_ends(self, call_hooks: CallHooks) -> None:
        """Hook the ends of the roots; call it after all other hooks were set, so that these run last."""
        for stage, model in enumerate(self._roots):
            for root in self._framework.roots(model):
                call_hooks.add(root, _RootLeaves(self, stage))

    def close(self) -> None:
        """Let go of the model."""
        self._roots.clear()
        self.before.clear()
        self.restarted.clear()
        self.dropped = lambda: False

    def enter(self, stage: int) -> None:
        """A forward of a root begins."""
        if self._framework.in_backward():
            return
        running = self._running
        running.depth[stage] += 1
        if running.depth[stage] > 1:
            return
        training = running.inside[stage] = self._training(stage)
        if training:
            self._open[stage] += 1
            goes_on = self._alone[stage] and self._goes_on(stage)
            self._called[stage], self._alone[stage] = True, False
            self._begin(stage, goes_on)

    def leave(self, stage: int, output: Any) -> None:
        """A forward of a root has ended, or raised (`output` is None)."""
        running = self._running
        if self._framework.in_backward() or not running.depth[stage]:
            return
        running.depth[stage] -= 1
        if running.depth[stage]:
            return
        if running.inside[stage]:
            self._open[stage] -= 1
            self._watch(stage, output)
        elif self._framework.is_recording() and self.clock.sampled:
            # In evaluation mode; a backward would tell that it is trained so.
            self._hook(output, _TrainsInEval(self, stage))
        running.inside[stage] = None

    def leave_alone(self, stage: int, output: Any) -> None:
        """A module that no other has called has ended."""
        if self._alone[stage]:
            self._watch(stage, output)

    def recording(self, stage: int) -> bool:
        """Whether a module that runs now belongs to the training.

        Inside a training forward all modules do, also those that run under `no_grad` (reentrant checkpointing,
        frozen towers) or in evaluation mode (frozen BatchNorm). A module that is called on its own does when
        a forward of its root would.
        """
        inside = self._running.inside[stage]
        if inside is None and self._open[stage]:
            # Replicas of a data-parallel module run in threads.
            return True
        if inside is None:
            inside = self._training(stage)
            begun = self.clock.has_begun(stage) and (self._called[stage] or self._goes_on(stage))
            if inside and not begun:
                self._alone[stage] = True
                self._begin(stage, goes_on=False)
        return inside

    def keep(self) -> None:
        """The gradients so far were consumed: that they are gone means nothing."""
        self._reached.clear()

    def backward_reaches(self, stage: int, micro_step: int) -> None:
        """A backward has reached the output of a micro-step's forward."""
        if self._in_eval[stage] is None:
            # Else it would have been seen in training mode.
            self._in_eval[stage] = True
        number = self._framework.backward_number()
        self.clock.backward_reaches(micro_step)
        if len(self._roots) == 1:
            self.earliest = micro_step if self.earliest is None else min(self.earliest, micro_step)
        if self._framework.is_recording():
            # Of this backward there is a graph, from which another one will come: a penalty on gradients.
            return
        reached = self._all_reached()
        if reached and number not in reached.values() and self._are_dropped():
            last = max(at for _, at in reached)
            if micro_step > last:
                self.clock.drop_before(last + 1)
        reached[stage, micro_step] = number

    def trains_in_eval(self, stage: int) -> None:
        """A backward has begun at the output of a root in evaluation mode: from now on it counts as training."""
        self._in_eval[stage] = True

    def _begin(self, stage: int, goes_on: bool) -> None:
        """A training forward begins.

        Args:
            stage: of its root.
            goes_on: it is a part of the micro-step that has begun.
        """
        for call in self.before:
            call()
        if self._framework.is_training(self._roots[stage]):
            if self._in_eval[stage] is None and self._goes_on(stage):
                # So these were evaluations.
                self._restart()
                goes_on = False
            self._in_eval[stage] = False
        elif self._in_eval[stage] is None and self._goes_on(stage) and not goes_on:
            self._restart()
        if goes_on:
            return
        if self._all_reached() and self._are_dropped():
            self.clock.drop_before(self.clock.micro_step_of(stage) + 1)
            self._reached.clear()
        self.clock.forward_begins(stage)

    def _are_dropped(self) -> bool:
        # The chunks of a virtual pipeline have forwards ahead of one another.
        return len(self._roots) == 1 and self.dropped()

    def _restart(self) -> None:
        """What was seen in this step is no training."""
        if len(self._roots) == 1:
            self.earliest = None
            self.clock.restart()
            self._observer.discard()
            for call in self.restarted:
                call()

    def _goes_on(self, stage: int) -> bool:
        """Whether a micro-step has begun and its backward has not."""
        return self.clock.has_begun(stage) and (stage, self.clock.micro_step_of(stage)) not in self._all_reached()

    def _all_reached(self) -> dict[tuple[int, int], int]:
        if self._step != self.clock.step:
            self._step = self.clock.step
            self._reached.clear()
        return self._reached

    def _watch(self, stage: int, output: Any) -> None:
        """Have the clock told when a backward reaches what a training forward has returned."""
        if self.clock.sampled:
            micro_step = self.clock.micro_step_of(stage)
            self._hook(output, _BackwardReaches(self, stage, self.clock.step, micro_step))

    def _hook(self, output: Any, hook: Hook) -> None:
        framework = self._framework
        for _, tensor in tensor_leaves(output, framework.is_tensor):
            if framework.can_have_gradient(tensor) and not framework.is_leaf(tensor):
                framework.register_hook(tensor, hook)

    def _training(self, stage: int) -> bool:
        if not self._roots or (not self.clock.in_step and self._framework.is_rehearsing()):
            return False
        if self._framework.is_training(self._roots[stage]):
            return True
        return self._in_eval[stage] is not False and self._framework.is_recording()


class _Running(threading.local):
    """What runs in one thread, by stage: an actor's forwards are not the learner's."""

    def __init__(self, stages: int) -> None:
        self.inside: list[bool | None] = [None] * stages
        """Whether the forward of a root that is running belongs to the training; None: none is."""
        self.depth = [0] * stages


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

    def __init__(self, owner: TrainingForwards, stage: int, step: int, micro_step: int) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.stage = stage
        self.step = step
        self.micro_step = micro_step

    def fire(self, gradient: Any) -> None:
        if self.owner.clock.step == self.step:
            self.owner.backward_reaches(self.stage, self.micro_step)


class _TrainsInEval(Hook):
    """Sits on the outputs of a root in evaluation mode."""

    def __init__(self, owner: TrainingForwards, stage: int) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.stage = stage

    def fire(self, gradient: Any) -> None:
        self.owner.trains_in_eval(self.stage)
