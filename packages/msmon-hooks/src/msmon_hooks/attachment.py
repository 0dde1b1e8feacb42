"""Puts hooks onto a model and its optimizer, and takes them off: what all frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msmon_hooks.call_hooks import BeforeCall
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer, StepEnd
from msmon_hooks.framework_hooks import FrameworkHooks
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guarded
from msmon_hooks.readers import Readers
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.weights import WeightHooks


class Attachment:
    """Hooks that are in place. `close` takes all of them off; the model keeps nothing of them.

    It notices the optimizer's steps from the first to the last; what is read in them is asked for by a request, which
    may be another one after each step.

    Args:
        hooks: the framework's.
        models: the model, or the chunks of a virtual pipeline in order.
        optimizer: any object that the framework calls an optimizer.
        request: what to read; None: nothing yet, only notice the optimizer's steps.
        clock: is told of steps and micro-steps, and says which steps are sampled.
        observer: receives the tensors.
        coverage: is told what to expect.
        after_step: called when a step is over and the observer has been told.

    Raises:
        Exception: whatever hooking raises; all hooks that were set are taken off before.
    """

    def __init__(
        self,
        hooks: FrameworkHooks,
        models: Sequence[Any],
        optimizer: Any,
        request: Request | None,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        after_step: Callable[[StepEnd], None] | None = None,
    ) -> None:
        self._hooks = hooks
        self._models = list(models)
        self._optimizer = optimizer
        self._clock = clock
        self._coverage = coverage
        self._after_step = after_step
        self._readers: Readers | None = None
        self._registrations = Registrations()
        """Of what notices the optimizer's steps, and of what stays while other things are read."""
        self._switching = Guarded("start and stop", self._failed)
        self._steps = hooks.optimizer_steps(Guarded("steps", self._failed), self)
        self.loss_scale = hooks.loss_scale(Guarded("scaled losses", self._failed), self._steps)
        try:
            recording = self._record(request or Request(), observer)
            source = hooks.find_source(self._models, optimizer, recording)
            # An engine may have another one in its place.
            self._optimizer = source.optimizer
            self.engine = source.engine
            """What trains the model: `plain`, `ddp`, `data_parallel` and so on."""
            self.loss_scale.attach(self._optimizer, self._registrations)
            if request is not None:
                self._read(recording, source)
            watched = [] if source.updates_itself else self._models
            self._steps.attach(self._optimizer, self._registrations, watched)
        except BaseException:
            self.close()
            raise

    @property
    def weight_hooks(self) -> WeightHooks | None:
        """What reads gradients, moments and weights."""
        return None if self._readers is None else self._readers.weights

    def describe(self) -> list[dict[str, Any]]:
        """Name, shape, dtype and parts of every parameter, as `run.json` has them."""
        return [] if self._readers is None else self._readers.describe()

    def close(self, *, flush: bool = True) -> None:
        """Take every hook and patch off; harmless when called again. `flush`: a step that may not be over yet is."""
        try:
            if flush:
                self._switching.run(self._steps.flush)
            self._read_nothing()
        finally:
            self._registrations.close()
            self._models.clear()
            self._optimizer = None

    def retire(self) -> None:
        """Take the hooks off from inside a step's callback.

        Hooks of an optimizer cannot be removed while it runs through them, so these go when the next forward of the
        root begins.
        """
        self._read_nothing()
        if self._models:
            call_hooks = self._hooks.call_hooks()
            call_hooks.add(self._models[0], _Closes(Guarded("the end of collection"), self))
            self._registrations.callback(call_hooks.close)

    def reattach(self, request: Request | None, observer: Observer, coverage: Coverage) -> None:
        """Read something else from now on; None: nothing, and only the optimizer's step is still noticed.

        It may be called between two steps and from inside of `after_step`. What failed before is tried again.

        Raises:
            Exception: whatever hooking raises; the hooks that were set are taken off before.
        """
        self._coverage = coverage
        Guarded("hooks", self._failed).run(self._read_nothing)
        if request is not None:
            recording = self._record(request, observer)
            self._read(recording, self._hooks.find_source(self._models, self._optimizer, recording))

    def end_step(self, gradients: Any = None) -> None:
        """The weights are updated, in a loop in which no optimizer's step says so.

        `gradients`: what was consumed, see `msmon_hooks.optimizer_steps.OptimizerSteps.end_by_hand`.

        Raises:
            ValueError: steps of an optimizer are counted.
        """
        self._steps.end_by_hand(gradients)

    def begin_micro_step(self) -> None:
        """A training forward begins, in a loop that calls parts of the model instead of the model."""
        if self._readers is not None:
            self._readers.forwards.guard.run(self._readers.forwards.enter, 0)

    def end_micro_step(self, output: Any) -> None:
        """It has ended; `output` holds the loss."""
        if self._readers is not None:
            self._readers.forwards.guard.run(self._readers.forwards.leave, 0, output)

    def _record(self, request: Request, observer: Observer) -> Recording:
        return Recording(
            request=request,
            framework=self._hooks.framework,
            clock=self._clock,
            observer=observer,
            coverage=self._coverage,
            loss_scale=self.loss_scale,
        )

    def _read(self, recording: Recording, source: GradientSource) -> None:
        self._readers = Readers(self._hooks, self._models, source, recording, self._steps, self._registrations)
        try:
            self._readers.attach()
        except BaseException:
            self._read_nothing()
            raise

    def _read_nothing(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.close()

    def _failed(self, name: str, reason: str) -> None:
        self._coverage.switched_off(name, reason)

    # See `msmon_hooks.optimizer_steps.Listener`.

    def step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The optimizer is about to step."""
        if self._readers is not None:
            self._readers.step_begins(args, kwargs)

    def step_ends(self, result: Any, *, skipped: bool) -> None:
        """The optimizer has stepped, or was not allowed to."""
        readers = self._readers
        if readers is None:
            event = self._clock.step_ends(skipped=skipped)
        else:
            event = readers.step_ends(result, skipped=skipped)
        self.loss_scale.step_ends()
        if self._after_step is not None:
            self._switching.run(self._after_step, event)
        if readers is not None and readers.recording.request.ends_program and event.sampled:
            raise SystemExit(0)

    @property
    def step(self) -> int:
        """Number of the step in flight."""
        return self._clock.step

    @property
    def in_step(self) -> bool:
        """Whether a training forward has begun since the last step, or nobody looks at forwards."""
        return self._clock.in_step or self._readers is None

    def withheld(self) -> None:
        """The optimizer accumulates by itself."""
        if self._readers is not None:
            self._readers.forwards.keep()

    def follow(self, optimizer: Any) -> None:
        """Another optimizer is about to step."""
        self._optimizer = optimizer
        if self._readers is not None:
            self._readers.follow(optimizer)

    def followed(self, optimizer: Any) -> None:
        """Another optimizer has taken the place of the one that was given."""
        self.follow(optimizer)
        self.loss_scale.follow(optimizer)
        if self._readers is not None:
            self._readers.model_changed()

    def note(self, text: str) -> None:
        """Something that the reader of the files should know."""
        self._coverage.note(text)

    def step_raised(self) -> None:
        """The optimizer's step has raised, and the training goes on."""
        text = f"step {self._clock.step}: the optimizer raised; recorded as a step without an update"
        self._coverage.note(text)


class _Closes(BeforeCall):
    def __init__(self, guard: Guarded, owner: Attachment) -> None:
        super().__init__(guard)
        self.owner = owner

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.close()
