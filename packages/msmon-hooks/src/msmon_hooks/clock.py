"""Step and micro-step: one object keeps them, everyone else reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from attrs import field, frozen, validators

from msmon_hooks.events import StepEnd

_MICRO_STEPS = 64
_ACCUMULATIONS = 8


@frozen(kw_only=True)
class Schedule:
    """Which steps are sampled.

    A step is sampled when `step >= start_step and (step - start_step) % step_interval == 0`, until
    `collect_times` steps were taken.

    Example:
        >>> [step for step in range(8) if Schedule(start_step=1, step_interval=3).samples(step, taken=0)]
        [1, 4, 7]
    """

    start_step: int = field(default=0, validator=validators.ge(0))
    step_interval: int = field(default=1, validator=validators.ge(1))
    collect_times: int = field(default=100_000_000, validator=validators.ge(0))

    def samples(self, step: int, taken: int) -> bool:
        """Whether `step` is sampled when `taken` steps already were."""
        since = step - self.start_step
        return since >= 0 and since % self.step_interval == 0 and taken < self.collect_times


class Clock:
    """Keeps step and micro-step of one training.

    A step is one optimizer step. A micro-step begins with a training forward of the root module; each chunk of a
    virtual pipeline counts its own. The clock is told of everything by the hooks; between two sampled steps a hook
    reads `sampled` and nothing else.

    Args:
        start_iteration: number of the first step.
        grad_acc_steps: micro-steps per step; None: not known.
        schedule: which steps are sampled; default: all.

    Example:
        >>> clock = Clock(grad_acc_steps=2)
        >>> clock.forward_begins(); clock.forward_begins()
        >>> clock.step, clock.micro_step, clock.in_last_micro_step
        (0, 1, True)
        >>> clock.backward_reaches(0)
        >>> clock.in_last_micro_step
        False
        >>> clock.step_ends()
        StepEnd(step=0, sampled=True, skipped=False, last_micro_step=1, skip_handle=-1, first_micro_step=0)
        >>> clock.step, clock.micro_step
        (1, 0)
    """

    def __init__(
        self, *, start_iteration: int = 0, grad_acc_steps: int | None = 1, schedule: Schedule | None = None
    ) -> None:
        self.step = start_iteration
        """Number of the step in flight."""
        self.grad_acc_steps = grad_acc_steps
        self.taken = 0
        """How many steps were sampled since the schedule came into force."""
        self.next_call_id: Callable[[], int] = count().__next__
        """Returns a number that counts up within the step, from 0. Threads may call it at once."""
        self.longest = max(_MICRO_STEPS, _ACCUMULATIONS * (grad_acc_steps or 1))
        """More micro-steps than these are not recorded in one step: it does not seem to end. Steps that were longer and
        have ended raise it."""
        self._forwards: dict[int, int] = {}
        self._backward: int | None = None
        self._first = 0
        self._schedule = schedule or Schedule()
        self.sampled = self._schedule.samples(self.step, self.taken)
        """Whether the step in flight is recorded."""
        self.switches: list[Callable[[], None]] = []
        """Called when `sampled` may be another one."""

    @property
    def micro_step(self) -> int:
        """Index of the micro-step whose forward began last; 0 also before the first forward."""
        return max(self._forwards.values(), default=1) - 1

    def micro_step_of(self, stage: int) -> int:
        """Index of the micro-step of one model chunk, which an interleaved pipeline runs ahead or behind others."""
        return max(self._forwards.get(stage, 0) - 1, 0)

    @property
    def backward_micro_step(self) -> int:
        """Index of the micro-step whose backward runs, as far as it is known; else that of the last forward."""
        return self.micro_step if self._backward is None else self._backward

    def has_begun(self, stage: int) -> bool:
        """Whether a forward of that model chunk has begun since the last step ended."""
        return stage in self._forwards

    @property
    def in_step(self) -> bool:
        """Whether a forward has begun since the last step ended."""
        return bool(self._forwards)

    @property
    def is_endless(self) -> bool:
        """Whether the step in flight is recorded and has become longer than a step of this training can be."""
        return self.sampled and max(self._forwards.values(), default=0) >= self.longest

    def give_up(self) -> None:
        """The step in flight is not recorded any more."""
        self._switch(False)

    def _switch(self, sampled: bool) -> None:
        self.sampled = sampled
        for switch in self.switches:
            switch()

    @property
    def in_last_micro_step(self) -> bool:
        """Whether the gradients of the backward that runs complete the accumulation."""
        return self.is_last(self.backward_micro_step)

    def is_last(self, micro_step: int) -> bool:
        """Whether the gradients of that micro-step's backward complete the accumulation; where `grad_acc_steps` is not
        known, each may."""
        return self.grad_acc_steps is None or micro_step - self._first == self.grad_acc_steps - 1

    @property
    def exhausted(self) -> bool:
        """Whether no further step will ever be sampled by this schedule."""
        return self.taken >= self._schedule.collect_times

    def reschedule(self, schedule: Schedule, taken: int = 0) -> None:
        """Put another schedule into force, from the step in flight on; so many of its samples were taken already."""
        self._schedule = schedule
        self.taken = taken
        self._switch(schedule.samples(self.step, taken))

    def forward_begins(self, stage: int = 0) -> None:
        """A training forward of a root module begins, and with it a micro-step of that model chunk."""
        self._forwards[stage] = self._forwards.get(stage, 0) + 1
        self._backward = None

    def backward_reaches(self, micro_step: int) -> None:
        """A backward has reached the root's output of a micro-step. Pipelines run several forwards before it."""
        self._backward = micro_step

    def drop_before(self, micro_step: int) -> None:
        """The gradients of all micro-steps before this one are gone, and no update will use them. They keep their
        numbers until the step ends; then this one is the first."""
        self._first = max(self._first, micro_step)

    def restart(self) -> None:
        """No micro-step of the step in flight was one of the training."""
        self._forwards.clear()
        self._backward = None
        self._first = 0

    def step_ends(self, *, skipped: bool = False, skip_handle: int = -1) -> StepEnd:
        """The optimizer's step has ended, or a loss scaler has skipped it."""
        last = max(self.micro_step - self._first, 0)
        event = StepEnd(self.step, self.sampled, skipped, last, skip_handle, self._first)
        self.taken += self.sampled
        self.longest = max(self.longest, 2 * max(self._forwards.values(), default=0))
        self.step += 1
        self.restart()
        self.next_call_id = count().__next__
        self._switch(self._schedule.samples(self.step, self.taken))
        return event
