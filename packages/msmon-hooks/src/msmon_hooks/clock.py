"""Step and micro-step: one object keeps them, everyone else reads."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen, validators

from msmon_hooks._events import StepEnd


@frozen(kw_only=True)
class Schedule:
    """Which steps are sampled.

    A step is sampled when ``step >= start_step and (step - start_step) % step_interval == 0``, until
    ``collect_times`` steps were taken.

    Example:
        >>> [step for step in range(8) if Schedule(start_step=1, step_interval=3).samples(step, taken=0)]
        [1, 4, 7]
    """

    start_step: int = field(default=0, validator=validators.ge(0))
    step_interval: int = field(default=1, validator=validators.ge(1))
    collect_times: int = field(default=100_000_000, validator=validators.ge(0))

    def samples(self, step: int, taken: int) -> bool:
        """Whether ``step`` is sampled when ``taken`` steps already were."""
        since = step - self.start_step
        return since >= 0 and since % self.step_interval == 0 and taken < self.collect_times


class Clock:
    """Keeps step and micro-step of one training.

    A step is one optimizer step. A micro-step begins with a training forward of the root module. The clock is told
    of both by the hooks; between two sampled steps a hook reads :attr:`sampled` and nothing else.

    Example:
        >>> clock = Clock(grad_acc_steps=2)
        >>> clock.forward_begins(); clock.forward_begins()
        >>> clock.step, clock.micro_step, clock.in_last_micro_step
        (0, 1, True)
        >>> clock.step_ends()
        StepEnd(step=0, sampled=True, skipped=False, last_micro_step=1)
        >>> clock.step, clock.micro_step
        (1, 0)
    """

    def __init__(
        self,
        *,
        start_iteration: int = 0,
        grad_acc_steps: int = 1,
        schedule: Schedule | None = None,
        trace: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.step = start_iteration
        """Number of the step in flight."""
        self.grad_acc_steps = grad_acc_steps
        self.taken = 0
        """How many steps were sampled since the schedule came into force."""
        self._forwards = 0
        self._call_id = -1
        self._trace = trace or (lambda event, step, micro_step: None)
        self._schedule = schedule or Schedule()
        self.sampled = self._schedule.samples(self.step, self.taken)
        """Whether the step in flight is recorded."""

    @property
    def micro_step(self) -> int:
        """Index of the micro-step in flight; 0 also before the first forward."""
        return max(self._forwards - 1, 0)

    @property
    def in_step(self) -> bool:
        """Whether a forward has begun since the last step ended."""
        return self._forwards > 0

    @property
    def in_last_micro_step(self) -> bool:
        """Whether the gradients of this micro-step's backward complete the accumulation."""
        return self.micro_step == self.grad_acc_steps - 1

    @property
    def exhausted(self) -> bool:
        """Whether no further step will ever be sampled by this schedule."""
        return self.taken >= self._schedule.collect_times

    def reschedule(self, schedule: Schedule) -> None:
        """Put another schedule into force, from the step in flight on, and count its samples from 0."""
        self._schedule = schedule
        self.taken = 0
        self.sampled = schedule.samples(self.step, 0)

    def next_call_id(self) -> int:
        """A number that counts up within the step, from 0."""
        self._call_id += 1
        return self._call_id

    def forward_begins(self) -> None:
        """A training forward of the root module begins, and with it a micro-step."""
        self._forwards += 1
        self._trace("forward", self.step, self.micro_step)

    def step_ends(self, *, skipped: bool = False) -> StepEnd:
        """The optimizer's step has ended, or a loss scaler has skipped it."""
        event = StepEnd(self.step, self.sampled, skipped, self.micro_step)
        self._trace("skipped step" if skipped else "step", self.step, self.micro_step)
        self.taken += self.sampled
        self.step += 1
        self._forwards = 0
        self._call_id = -1
        self.sampled = self._schedule.samples(self.step, self.taken)
        return event
