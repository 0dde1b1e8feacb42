"""Notices an optimizer's step: before it, once its gradients are computed, and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any, Generic, Protocol, TypeVar

from msmon_hooks.guard import Guarded
from msmon_hooks.optimizer_group import members
from msmon_hooks.registrations import Registrations
from msmon_hooks.step_calls import Arguments, StepCalls

_BOTH_WAYS = (
    "monitor.step(): the steps of the optimizer that set_monitor was given are seen and counted already; leave the "
    "call out, or give set_monitor(..., optimizer=None) and call monitor.step() after each update"
)

Calls = TypeVar("Calls", bound=StepCalls)


class Listener(Protocol):
    """Is told of an optimizer's steps."""

    def step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The optimizer is about to step; it is called with these arguments."""

    def step_ends(self, result: Any, *, skipped: bool) -> None:
        """It has stepped, and returned `result`. `skipped`: there was no update."""

    def step_raised(self) -> None:
        """It has raised; the training goes on, so the step is over: `step_ends` comes next."""

    @property
    def step(self) -> int:
        """Number of the step in flight."""

    @property
    def in_step(self) -> bool:
        """Whether a training forward has begun since the last step, or nobody looks at forwards."""

    def withheld(self) -> None:
        """The optimizer was called, took the gradients, and has not stepped: it accumulates by itself."""

    def follow(self, optimizer: Any) -> None:
        """Another optimizer is about to step; it may have taken the place of the one that was given."""

    def followed(self, optimizer: Any) -> None:
        """It has."""

    def note(self, text: str) -> None:
        """Something that the reader of the files should know."""


class OptimizerSteps(Generic[Calls]):
    """Notices the steps of the optimizers that train a model.

    `step_begins` comes first, then what is in `before_update`, once the gradients are computed, then `step_ends`. A
    step that is called with a closure computes its gradients itself: what is in `before_update` then comes after each
    call of the closure, so that the last one stands for the gradients that the final update consumed. Of several
    optimizers each begins, and the step is over when each has stepped, or one steps again.

    Args:
        guard: guards what is called back.
        listener: is told of steps.

    Example:
        >>> class Optimizer:
        ...     def step(self): print("update")
        >>> class Say:
        ...     def step_begins(self, args, kwargs): print("begins")
        ...     def step_ends(self, result, *, skipped): print("ends")
        >>> class Steps(OptimizerSteps[StepCalls]):
        ...     def hook(self, optimizer, registrations):
        ...         calls = StepCalls(self, optimizer, [])
        ...         calls.wrap(optimizer, registrations)
        ...         return calls
        >>> optimizer, owned = Optimizer(), Registrations()
        >>> steps = Steps(Guarded("steps"), Say())
        >>> steps.before_update.append(lambda: print("evaluated"))
        >>> steps.attach(optimizer, owned); optimizer.step()
        begins
        evaluated
        update
        ends
        >>> owned.close(); "step" in vars(optimizer)
        False
    """

    def __init__(self, guard: Guarded, listener: Listener) -> None:
        self.guard = guard
        self.active = True
        self.count = 0
        """Steps that have ended."""
        self.before_update: list[Callable[[], None]] = []
        """Called when the gradients are what the update consumes."""
        self.updating: Set[int] | None = None
        """`id` of the parameters that are being updated, in the order of their optimizer; None for all."""
        self.updated: set[int] = set()
        """`id` of the parameters that one of several has updated in the step in flight. A gradient that comes for them
        now is consumed in another step, or by nobody."""
        self.by_hand = False
        """Whether `end_by_hand` ends steps."""
        self.running = False
        self._listener = listener
        self._begun = False
        self._given: list[Calls] = []
        self._done: dict[Calls, bool] = {}
        """Those that have stepped in the step in flight, and whether that was skipped."""

    def attach(self, optimizer: Any, registrations: Registrations, models: Sequence[Any] = ()) -> None:
        """Begin to notice steps; `registrations` end it.

        Args:
            optimizer: what was given: one, several (`OptimizerGroup`), or None.
            registrations: own the hooks.
            models: whose weights are watched.
        """
        self.by_hand = optimizer is None
        self._given = [self.hook(one, registrations) for one in members(optimizer)]
        registrations.callback(self._stop)

    def hook(self, optimizer: Any, registrations: Registrations) -> Calls:
        """Begin to notice calls of one optimizer."""
        raise NotImplementedError

    def _stop(self) -> None:
        self.active = False

    def given(self, optimizer: Any) -> Calls | None:
        """What is known of an optimizer whose steps are those of the training; None for another one."""
        return next((one for one in self._given if one.optimizer() is optimizer), None)

    @property
    def stepping(self) -> Any:
        """The given optimizer whose call is running; None where none is."""
        return next((one.optimizer() for one in self._given if one.running), None)

    def call_begins(self, calls: Calls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A step begins; returns other arguments where there is a closure."""
        self._is_given(calls)
        self.running = True
        self.updating = self._part(calls)
        self._listener.step_begins(args, kwargs)
        return self.evaluate(args, kwargs)

    def call_ends(self, calls: Calls, result: Any) -> None:
        """A step has ended; one of several updates, where the program says when a step is over."""
        self.running = False
        if not self.by_hand:
            self._has_stepped(calls, result, skipped=False)

    def call_raised(self, calls: Calls) -> None:
        """It has raised."""
        self.running = False
        if not self.by_hand:
            self.guard.run(self._listener.step_raised)
            self._end(None, skipped=True)

    def _part(self, calls: Calls) -> Set[int] | None:
        """`id` of the parameters that this one updates; None for all."""
        return None if self._given == [calls] else calls.parameters

    def _is_given(self, calls: Calls) -> None:
        """One of the given ones steps."""
        self._end_if_again(calls)

    def _end_if_again(self, calls: Calls) -> None:
        """What has stepped in the step in flight steps again."""
        if calls in self._done:
            self._end(None, skipped=all(self._done.values()))

    def _has_stepped(self, calls: Calls, result: Any, *, skipped: bool) -> None:
        self._done[calls] = skipped
        if len(self._given) > 1:
            self.updated.update(calls.parameters)
        if all(self._is_done(one) for one in self._given) and not self._is_deferred():
            self._end(result, skipped=all(self._done.values()))

    def _is_done(self, calls: Calls) -> bool:
        return calls in self._done

    def _is_deferred(self) -> bool:
        """Whether something that belongs to the step is still to come."""
        return False

    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Call `evaluated` once the gradients are computed: now, or after each call of a closure among the
        arguments of a step. Returns other arguments where there is one."""
        closure = kwargs.get("closure", args[0] if args else None)
        if not callable(closure):
            self.evaluated()
            return None
        watched = self._watched(closure)
        return (args, {**kwargs, "closure": watched}) if "closure" in kwargs else ((watched, *args[1:]), kwargs)

    def evaluated(self) -> None:
        """The gradients are computed."""
        for call in list(self.before_update):
            call()

    def forward_begins(self) -> None:
        """A training forward begins: the first of a step that the program ends."""
        if self.by_hand and not self._begun:
            self._begun = True
            self.updating = None
            self._listener.step_begins((), {})

    def flush(self) -> None:
        """Whatever has stepped, its step is over."""

    def end_by_hand(self, gradients: Any = None) -> None:
        """The program says that the weights are updated.

        Args:
            gradients: what was consumed, in the order of the trained parameters, where a framework keeps it nowhere.

        Raises:
            ValueError: steps of an optimizer are counted.
        """
        if self.count and not self.by_hand:
            raise ValueError(_BOTH_WAYS)
        self.by_hand = True
        self.updating = None
        if gradients is not None:
            self.guard.run(self._listener.step_begins, (gradients,), {})
        self.guard.run(self.evaluated)
        self._end(None, skipped=False)

    def skipped(self, optimizer: Any) -> None:
        """A loss scaler has not let an optimizer step; gradients and moments stand as they would have."""
        calls = self.given(optimizer)
        if calls is None or self.by_hand:
            return
        self._is_given(calls)
        self.updating = self._part(calls)
        self.guard.run(self._listener.step_begins, (), {})
        self.guard.run(self.evaluated)
        self._has_stepped(calls, None, skipped=True)

    def _end(self, result: Any, *, skipped: bool) -> None:
        self.count += 1
        self.running = self._begun = False
        self.updating = None
        self._done.clear()
        self.updated.clear()
        self.guard.always(self._listener.step_ends, result, skipped=skipped)

    def _watched(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            if self.active:
                self.guard.run(self.evaluated)
            return loss

        return evaluate
