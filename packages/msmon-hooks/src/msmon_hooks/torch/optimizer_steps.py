"""Notices the steps of torch's optimizers, and which of them update the weights that are watched."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from msmon_hooks import optimizer_steps
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.hooks import Hook
from msmon_hooks.optimizer_group import joined, members
from msmon_hooks.optimizer_steps import Listener
from msmon_hooks.registrations import Registrations
from msmon_hooks.step_calls import Arguments
from msmon_hooks.torch.all_optimizers import watch_all
from msmon_hooks.torch.backward import in_backward
from msmon_hooks.torch.callers import is_called_in
from msmon_hooks.torch.mesh_shards import local_part
from msmon_hooks.torch.nested_optimizers import nested_optimizers
from msmon_hooks.torch.step_calls import StepCalls, runs_hooks

_FOLLOWED = "the weights are now updated by another optimizer, {}: its steps are followed from here on"
_CREATES_STATE = "torch.distributed.checkpoint.state_dict"


class OptimizerSteps(optimizer_steps.OptimizerSteps[StepCalls]):
    """See `msmon_hooks.optimizer_steps.OptimizerSteps`.

    A step is what updates the weights that are watched. The optimizers that were given tell of theirs; those inside of
    them, in hooks of a backward, or in their place are seen by torch's global hooks.

    * A given optimizer steps: that is a step. Of several, each has to, or one again.
    * One steps inside of a given one: the gradients are what the inner one consumes, and the step is over when the
      outer call is. An optimizer that has others inside and lets none of them step has not stepped.
    * One steps in a backward: its parameters are read around its step; what ends the step is something else.
    * One steps over the same parameters, and no given one does before the next training forward: it has taken their
      place.
    """

    def __init__(self, guard: Guarded, listener: Listener) -> None:
        super().__init__(guard, listener)
        self.own: dict[int, Callable[[], Any]] = {}
        """By `id`, the optimizers that tell by hooks of their own."""
        self._models: list[weakref.ref[Any]] = []
        self._others: dict[int, tuple[StepCalls | None, weakref.ref[Any], int]] = {}
        self._waiting: list[StepCalls] = []
        """Those that may have taken the place of the given ones."""
        self._deferred = False
        self._told: set[str] = set()

    # Hooks

    def attach(self, optimizer: Any, registrations: Registrations, models: Sequence[Any] = ()) -> None:
        """Begin to notice steps; `registrations` end it. Without `models`, steps of other optimizers are of no
        interest."""
        self._models = [weakref.ref(model) for model in models]
        super().attach(optimizer, registrations)
        if models:
            watch_all(self, registrations)

    def hook(self, optimizer: Any, registrations: Registrations) -> StepCalls:
        """By the optimizer's own hooks; where it runs none, by wrapping the instance's `step`."""
        calls = StepCalls(self, optimizer)
        calls.given = True
        self.own[id(optimizer)] = calls.optimizer
        if calls.runs_hooks:
            registrations.add(optimizer.register_step_pre_hook(_Before(self.guard, calls)))
            registrations.add(optimizer.register_step_post_hook(_After(self.guard, calls)))
        else:
            calls.wrap(optimizer, registrations)
        return calls

    def other(self, optimizer: Any) -> StepCalls | None:
        """What is known of an optimizer that torch's global hooks have seen; None where its steps are of no interest:
        it has no weights that are watched, or tells by its own hooks."""
        known = self._others.get(id(optimizer))
        groups = len(optimizer.param_groups)
        if known is None or known[1]() is not optimizer or known[2] != groups:
            # Loops may make new ones without end.
            self._others = {key: entry for key, entry in self._others.items() if entry[1]() is not None}
            known = self._others[id(optimizer)] = self._examine(optimizer), weakref.ref(optimizer), groups
        return known[0]

    def _examine(self, optimizer: Any) -> StepCalls | None:
        own = self.own.get(id(optimizer))
        if own is not None and own() is optimizer:
            return None
        calls = StepCalls(self, optimizer)
        return None if self._watched_parameters().isdisjoint(calls.parameters) else calls

    # Calls of steps

    def call_begins(self, calls: StepCalls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """An optimizer's `step` is called."""
        calls.updated = calls.ignored = False
        outer = self._outer(calls)
        if self._creates_state(calls) or (outer is not None and outer.ignored):
            calls.ignored = True
            return None
        if outer is not None:
            outer.updated = outer.proved = True
        elif self.by_hand or in_backward():
            pass
        elif calls.given:
            self._is_given(calls)
            if not calls.delegates and self._has_others_inside(calls):
                calls.delegates = True
            if calls.delegates:
                calls.versions = None if calls.proved else self._versions(calls)
                return None
        elif self._home(calls) is not None:
            self._end_if_again(calls)
        elif not self._may_replace(calls):
            calls.ignored = True
            return None
        self.running = True
        self.updating = self._part(calls)
        self._listener.step_begins(args, kwargs)
        return self.evaluate(args, kwargs)

    def call_ends(self, calls: StepCalls, result: Any) -> None:
        """It has returned."""
        self.running = calls.running if self._given == [calls] else any(one.running for one in self._given)
        if calls.ignored or self._outer(calls) is not None or self.by_hand:
            return
        if calls.given:
            if calls.delegates and not calls.updated:
                if calls.proved or self._versions(calls) == calls.versions:
                    self._listener.withheld()
                    return
                # It has others inside and updates the weights without them.
                calls.delegates = False
        elif in_backward() or self._home(calls) is None:
            return
        self._has_stepped(calls, result, skipped=False)

    def call_raised(self, calls: StepCalls) -> None:
        """It has raised."""
        self.running = False
        if calls.given and not self.by_hand and not calls.ignored and (calls.updated or not calls.delegates):
            self.guard.run(self._listener.step_raised)
            self._end(None, skipped=True)

    def _outer(self, calls: StepCalls) -> StepCalls | None:
        """The given one in whose call this one runs."""
        for one in self._given:
            if one.running and one is not calls:
                return one
        return None

    def _home(self, calls: StepCalls) -> StepCalls | None:
        """The given one that has this one inside."""
        return next((one for one in self._given if calls in self._inside(one)), None)

    def _inside(self, calls: StepCalls) -> list[StepCalls]:
        """The optimizers inside of one that run hooks and train weights that are watched. Looked for once."""
        if calls.inside is None:
            outer = calls.optimizer()
            found = (one for one in nested_optimizers(outer) if one is not outer and runs_hooks(one))
            calls.inside = [one for inner in found if (one := self.other(inner)) is not None]
        return calls.inside

    def _versions(self, calls: StepCalls) -> int:
        """A number that grows when an operation in place changes a weight."""
        models = (one for model in self._models if (one := model()) is not None)
        return sum(p._version for model in models for p in model.parameters() if id(p) in calls.parameters)

    def _has_others_inside(self, calls: StepCalls) -> bool:
        return bool(self._models) and not calls.count and bool(self._inside(calls))

    def _is_given(self, calls: StepCalls) -> None:
        """One of the given ones steps: what others did meanwhile was done beside it."""
        if self._waiting:
            for one in self._waiting:
                one.beside = True
            self._waiting.clear()
            self._listener.follow(_joined(self._given))
        super()._is_given(calls)

    def _may_replace(self, calls: StepCalls) -> bool:
        """Whether an optimizer that nobody has given may have taken the place of those that were."""
        if calls.beside or not self._listener.in_step or not self._trains_the_same(calls):
            return False
        if calls in self._waiting:
            self._replace()
            return True
        self._waiting.append(calls)
        self._listener.follow(_joined(self._waiting))
        return True

    def _trains_the_same(self, calls: StepCalls) -> bool:
        """Whether it has parameters that the given ones have; where these have none that are watched, all count."""
        if calls.competes is None:
            watched = self._watched_parameters()
            own = frozenset[int]().union(*(one.parameters for one in self._given)) & watched
            calls.competes = not own.isdisjoint(calls.parameters) if own else True
        return calls.competes

    def _watched_parameters(self) -> set[int]:
        models = (one for model in self._models if (one := model()) is not None)
        return {id(parameter) for model in models for parameter in model.parameters()}

    def _replace(self) -> None:
        """Those that wait have taken the place of the given ones."""
        waiting, self._waiting = self._waiting, []
        self._end(None, skipped=False)
        for one in self._given:
            one.given = False
        for one in waiting:
            one.given = True
        self._given = waiting
        for known, _, _ in self._others.values():
            if known is not None:
                known.competes = None
        optimizer = _joined(waiting)
        text = _FOLLOWED.format(", ".join(type(one).__name__ for one in members(optimizer)))
        self._listener.followed(optimizer)
        if text not in self._told:
            self._told.add(text)
            logger.warning("step %d: %s", self._listener.step, text)
            self._listener.note(f"from step {self._listener.step - 1}: {text}")

    def _creates_state(self, calls: StepCalls) -> bool:
        """Whether this is a step on gradients of zero that is there to make the optimizer create its state: nothing of
        the model has run since the last step."""
        if self._listener.in_step or self.running or (self.count and not is_called_in(_CREATES_STATE)):
            return False
        groups = getattr(calls.optimizer(), "param_groups", ())
        gradients = [one.grad for group in groups for one in group["params"] if one.grad is not None]
        if not gradients or any(one.layout is not torch.strided for one in gradients):
            return False
        return not any(bool(local_part(gradient).any()) for gradient in gradients)

    # Steps

    def _is_done(self, calls: StepCalls) -> bool:
        return super()._is_done(calls) or self._all_inside_have(calls)

    def _is_deferred(self) -> bool:
        # The backward goes on, and belongs to this step.
        self._deferred = in_backward()
        return self._deferred

    def _all_inside_have(self, calls: StepCalls) -> bool:
        inside = self._inside(calls)
        return bool(inside) and all(one in self._done for one in inside)

    def _end(self, result: Any, *, skipped: bool) -> None:
        self._deferred = False
        super()._end(result, skipped=skipped)

    def forward_begins(self) -> None:
        """A training forward begins. Inside of a step it is that of a closure; else a step that did not end has raised:
        torch then runs no hook."""
        if self.running:
            for calls in [*self._given]:
                calls.check_raised()
            self.running = any(one.running for one in self._given)
        if not self.running:
            self.flush()
        super().forward_begins()

    def flush(self) -> None:
        """What waits for something that would still belong to the step has waited long enough."""
        if self._deferred:
            self._end(None, skipped=False)
        elif self._waiting:
            self._replace()

    def end_by_hand(self, gradients: Any = None) -> None:
        """The program says that the weights are updated."""
        super().end_by_hand(gradients)
        self._waiting.clear()


def _joined(calls: Sequence[StepCalls]) -> Any:
    optimizers = [optimizer for one in calls if (optimizer := one.optimizer()) is not None]
    return joined(optimizers)


class _Before(Hook):
    def __init__(self, guard: Guarded, calls: StepCalls) -> None:
        super().__init__(guard)
        self.calls = calls

    __call__ = torch.compiler.disable(Hook.__call__)

    def fire(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        # torch passes the optimizer itself as the first of the arguments.
        replaced = self.calls.before(args[1:], kwargs) if self.calls.active else None
        return replaced and ((*args[:1], *replaced[0]), replaced[1])


class _After(Hook):
    def __init__(self, guard: Guarded, calls: StepCalls) -> None:
        super().__init__(guard)
        self.calls = calls

    @torch.compiler.disable
    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Whatever has failed: steps are counted on.
        if self.calls.active:
            self.calls.after()
