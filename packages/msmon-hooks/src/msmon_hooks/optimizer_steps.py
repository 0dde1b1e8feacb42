"""Notices an optimizer's step: before it, once its gradients are computed, and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from msmon_hooks.guard import Guarded
from msmon_hooks.registrations import Registrations

_BOTH_WAYS = (
    "monitor.step(): the steps of the optimizer that set_monitor was given are seen and counted already; leave the "
    "call out, or give set_monitor(..., optimizer=None) and call monitor.step() after each update"
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


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


class Called(Protocol):
    """Is told of calls of one optimizer's `step`."""

    guard: Guarded

    @property
    def active(self) -> bool:
        """Whether anybody wants to know."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """One begins; returns other arguments where there is a closure."""

    def after(self, result: Any = None) -> None:
        """One has ended."""

    def raised(self) -> None:
        """One has raised."""


class OptimizerSteps:
    """Notices the steps of an optimizer that has a method `step`.

    `step_begins` comes first, then what is in `before_update`, once the gradients are computed, then `step_ends`. A
    step that is called with a closure computes its gradients itself: what is in `before_update` then comes after each
    call of the closure, so that the last one stands for the gradients that the final update consumed.

    Args:
        guard: guards what is called back.
        listener: is told of steps.

    Example:
        >>> class Optimizer:
        ...     def step(self): print("update")
        >>> class Say:
        ...     def step_begins(self, args, kwargs): print("begins")
        ...     def step_ends(self, result, *, skipped): print("ends")
        >>> optimizer, owned = Optimizer(), Registrations()
        >>> steps = OptimizerSteps(Guarded("steps"), Say())
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
        self.updating: frozenset[int] | None = None
        """`id` of the parameters that are being updated; None for all."""
        self.by_hand = False
        """Whether `end_by_hand` ends steps."""
        self._listener = listener
        self._begun = False
        self.running = False

    def attach(self, optimizer: Any, registrations: Registrations, models: Sequence[Any] = ()) -> None:
        """Begin to notice steps; `registrations` end it. `optimizer`: None where there is none to be seen; `models`:
        whose weights are watched."""
        self.by_hand = optimizer is None
        if optimizer is not None:
            self.hook(optimizer, registrations)
        registrations.callback(self._stop)

    def hook(self, optimizer: Any, registrations: Registrations) -> None:
        """By wrapping the instance's `step`. A framework knows better ways for its own optimizers."""
        registrations.patch(optimizer, "step", partial(Step, self))

    def _stop(self) -> None:
        self.active = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A step begins; returns other arguments where there is a closure."""
        self.raised()
        self.running = True
        self._listener.step_begins(args, kwargs)
        return self.evaluate(args, kwargs)

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

    def after(self, result: Any = None) -> None:
        """A step has ended; one of several updates, where the program says when a step is over."""
        if self.by_hand:
            self.running = False
        else:
            self._end(result, skipped=False)

    def raised(self) -> None:
        """The step that is running, if there is one, has raised: it is over, and nothing else says so."""
        if self.running and self.by_hand:
            self.running = False
        elif self.running:
            self.guard.run(self._listener.step_raised)
            self._end(None, skipped=True)

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

    def skipped(self, optimizer: Any = None) -> None:
        """A loss scaler has not let the optimizer step; gradients and moments stand as they would have."""
        self.guard.run(self._listener.step_begins, (), {})
        self.guard.run(self.evaluated)
        self._end(None, skipped=True)

    def _end(self, result: Any, *, skipped: bool) -> None:
        self.count += 1
        self.running = self._begun = False
        self.guard.always(self._listener.step_ends, result, skipped=skipped)

    def _watched(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            if self.active:
                self.guard.run(self.evaluated)
            return loss

        return evaluate


class Step:
    """Stands in an optimizer for its `step`. In a copy of that optimizer stands the copy's own `step`, or the copy
    would update the weights of the original."""

    def __init__(self, owner: Called, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.owner = owner
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = self.owner
        if not owner.active:
            return self.original(*args, **kwargs)
        replaced = owner.guard.run(owner.before, args, kwargs)
        args, kwargs = (args, kwargs) if replaced is None else replaced
        try:
            result = self.original(*args, **kwargs)
        except Exception:
            owner.raised()
            raise
        owner.after(result)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        # Where the optimizer is being copied, the first argument is the copy, which has no attributes of its own yet.
        original = self.original
        while isinstance(original, Step):
            original = original.original
        owner = getattr(original, "__self__", None)
        return (functools.partial, (original,)) if owner is None else (getattr, (owner, "step"))
