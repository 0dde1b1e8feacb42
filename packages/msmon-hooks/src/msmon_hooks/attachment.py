"""Puts hooks onto a model and its optimizer, in the right order, and takes them off: what all frameworks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msmon_hooks.adam import AdamSettings
from msmon_hooks.clock import Clock
from msmon_hooks.collective_rows import CollectiveRows
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer, StepEnd
from msmon_hooks.framework import Framework
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guards, logger
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.module_readers import ModuleReaders
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.training_forwards import TrainingForwards
from msmon_hooks.weight_readers import Agreement, WeightReaders, shortened
from msmon_hooks.weights import WeightHooks

A = TypeVar("A", bound="Attachment")


class Attachment(ABC):
    """Hooks that are in place. `close` takes all of them off; the model keeps nothing of them.

    A framework's subclass says how its modules, optimizers and engines are hooked.
    """

    framework: Framework
    _module_calls: Callable[[], Any]
    """Makes what takes hooks on calls of modules: `msmon_hooks.call_hooks.ModuleCalls`, with `close()`."""
    _collective_hooks: Callable[..., CollectiveRows]
    """Makes the hooks of collectives, from the arguments of `CollectiveRows`."""
    _loss_scale: Callable[..., LossScale]
    """Makes what watches loss scalers, from the optimizer, a function that says how many steps of it were seen so far,
    and one to call when an update was skipped."""
    _adam_settings: Callable[[Any], Callable[[Weight], AdamSettings | None]]
    """See `WeightReaders`."""
    _named_modules: Callable[[Sequence[Any]], Mapping[tuple[int, str], Any]]
    """Stage and plain name to module."""

    def __init__(
        self,
        models: Sequence[Any],
        optimizer: Any,
        request: Request | None,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        after_step: Callable[[StepEnd], None] | None,
    ) -> None:
        self.registrations = Registrations()
        self.step_registrations = Registrations()
        """What sits on the optimizer's step."""
        self.forwards: TrainingForwards | None = None
        self._models = list(models)
        self._optimizer = optimizer
        self._clock = clock
        self._after_step = after_step
        self._calls = self._module_calls()
        self._weight_registrations = Registrations()
        self._modules: ModuleReaders | None = None
        self._weights: WeightReaders | None = None
        self._collectives: CollectiveRows | None = None
        self._take(request, observer, coverage)
        self._parts = Guards(coverage.part_failed)
        self._source = self._find_source()
        # An engine may have another one in its place.
        self._optimizer = self._source.optimizer
        self.engine = self._source.engine
        """What trains the model: `plain`, `ddp`, `data_parallel` and so on."""
        self.weights = self._source.weights()
        """Every parameter of the model, also those that are not monitored."""
        steps = self._steps = self._make_steps()
        self.loss_scale = self._loss_scale(self._optimizer, lambda: steps.count, self._step_skipped)

    @classmethod
    def attach(
        cls: type[A],
        models: Sequence[Any],
        optimizer: Any,
        request: Request | None,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        after_step: Callable[[StepEnd], None] | None = None,
    ) -> A:
        """Hook the model chunks and the optimizer.

        Args:
            models: the model, or the chunks of a virtual pipeline in order.
            optimizer: any object that the framework calls an optimizer; wrappers are unwrapped.
            request: what to read; None: nothing yet, only notice the optimizer's steps.
            clock: is told of steps and micro-steps, and says which steps are sampled.
            observer: receives the tensors.
            coverage: is told what to expect.
            after_step: called when a step is over and the observer has been told.

        Raises:
            Exception: whatever hooking raises; all hooks that were set are taken off before.
        """
        attachment = cls(models, optimizer, request, clock, observer, coverage, after_step)
        try:
            attachment.loss_scale.attach(attachment.step_registrations)
            attachment._hook()
            attachment._steps.attach(attachment._optimizer, attachment.step_registrations)
        except BaseException:
            attachment.close()
            raise
        return attachment

    # What a framework adds

    @abstractmethod
    def _make_steps(self) -> OptimizerSteps:
        """What notices the optimizer's steps."""

    @abstractmethod
    def _find_source(self) -> GradientSource:
        """The engine that trains the model."""

    @staticmethod
    @abstractmethod
    def _agreement(sign_agreement: Agreement) -> Agreement:
        """See `WeightReaders`."""

    # The hooks

    @property
    def weight_hooks(self) -> WeightHooks | None:
        """What reads gradients, moments and weights."""
        return None if self._weights is None else self._weights.hooks

    def describe(self) -> list[dict[str, Any]]:
        """Name, shape, dtype and parts of every parameter, as `run.json` has them."""
        return [self._source.describe(weight) for weight in shortened(self.weights, self._weight_names)]

    def close(self) -> None:
        """Take every hook and patch off; harmless when called again."""
        try:
            self._unhook()
        finally:
            self.step_registrations.close()
            self._models.clear()
            self._optimizer = None

    def retire(self) -> None:
        """Take the hooks off from inside a step's callback."""
        self.close()

    def reattach(self, request: Request | None, observer: Observer, coverage: Coverage) -> None:
        """Read something else from now on; None: nothing, and only the optimizer's step is still noticed.

        It may be called between two steps and from inside of `after_step`.

        Raises:
            Exception: whatever hooking raises; the hooks that were set are taken off before.
        """
        self._parts("hooks").always(self._unhook)
        # What failed before is tried again; the part that notices steps goes on.
        self._parts = Guards(coverage.part_failed, kept=[self._parts("steps"), self._parts("start and stop")])
        self._take(request, observer, coverage)
        self._source = self._find_source()
        self.weights = self._source.weights()
        try:
            self._hook()
        except BaseException:
            self._unhook()
            raise

    def begin_micro_step(self) -> None:
        """A training forward begins, in a loop that calls parts of the model instead of the model."""
        if self.forwards is not None:
            self.forwards.part.run(self.forwards.enter, 0)

    def end_micro_step(self, output: Any) -> None:
        """It has ended; `output` holds the loss."""
        if self.forwards is not None:
            self.forwards.part.run(self.forwards.leave, 0, output)

    def _take(self, request: Request | None, observer: Observer, coverage: Coverage) -> None:
        self._idle = request is None
        self._request = request or Request()
        self._observer = observer
        self._coverage = coverage
        self._weight_names = ShortNames(enabled=self._request.short_names)

    def _unhook(self) -> None:
        try:
            self.registrations.close()
        finally:
            self._modules = self._weights = self._collectives = self.forwards = None

    def _hook(self) -> None:
        """Put on everything but what notices the optimizer's steps."""
        self._says_so = False
        if self._idle:
            return
        owned = self.registrations
        owned.callback(self._calls.close)
        owned.callback(self._weight_registrations.close)
        # An engine may consume its gradients in the middle of the step, and says so itself.
        update = self._parts("gradients at the update")
        self._says_so = bool(update.run(self._source.attach_update, self._gradients_ready, owned))
        micro_steps = self._parts("micro-steps", self._micro_steps_failed)
        forwards = self.forwards = TrainingForwards(self.framework, self._models, self._clock, micro_steps)
        owned.callback(forwards.close)
        forwards.attach(self._calls)
        self._modules = ModuleReaders(
            self._request,
            clock=self._clock,
            observer=self._observer,
            coverage=self._coverage,
            parts=self._parts,
            forwards=forwards,
            calls=self._calls,
            loss_scale=self.loss_scale,
            owned=owned,
        )
        modules = self._named_modules(self._models)
        self._modules.attach(modules, len(self._models))
        self._modules.attach_first_step(modules)
        forwards.attach_ends(self._calls)
        self._parts("collectives").run(self._hook_collectives)
        self._parts("parameters").run(self._hook_weights)
        self._parts("names of targets").run(self._report_unmatched, modules)

    def _micro_steps_failed(self, part: str, reason: str) -> None:
        self._coverage.part_failed(part, reason)
        # Their rows would carry the wrong micro-step.
        for name in ("activations", "activation gradients", "L2 features"):
            if name in self._parts:
                self._parts(name).fail(RuntimeError("it needs micro-steps"))

    def _model_changed(self) -> None:
        """Modules or parameters are others than before; nothing of the model runs now."""
        if self._modules is not None:
            self._modules.attach(self._named_modules(self._models), len(self._models))
        # Engines keep parameters of their own under the model's names.
        if self.engine == "plain":
            self._source = self._find_source()
            self.weights = self._source.weights()
            self._weight_registrations.close()
            self._hook_weights()

    def _hook_collectives(self) -> None:
        if self._request.collectives is not None:
            self._collectives = self._collective_hooks(
                self._request.collectives,
                clock=self._clock,
                observer=self._observer,
                part=self._parts("collectives"),
                coverage=self._coverage,
            )
            self._collectives.attach(self.registrations)

    def _hook_weights(self) -> None:
        self._weights = None
        for stage in range(len(self._models)):
            self._weight_names.learn(stage, [weight.name for weight in self.weights if weight.vpp_stage == stage])
        self._weights = WeightReaders(
            self._request,
            framework=self.framework,
            clock=self._clock,
            observer=self._observer,
            coverage=self._coverage,
            parts=self._parts,
            source=self._source,
            weights=self.weights,
            names=self._weight_names,
            loss_scale=self.loss_scale,
            agreement=self._agreement,
            settings=self._adam_settings,
            registrations=self._weight_registrations,
        )

    def _report_unmatched(self, modules: Mapping[tuple[int, str], Any]) -> None:
        targets = self._request.targets
        for stage, name in modules:
            targets.module(stage, name)
        for weight in self.weights:
            targets.parameter(weight.vpp_stage, weight.name)
        known = [*(weight.name for weight in self.weights), *(name for _, name in modules)]
        for text in targets.unmatched("targets", known):
            logger.warning("%s", text)
            self._coverage.note(text)

    # Steps

    def _step_begins(self) -> None:
        if self._weights is not None:
            self._weights.step_begins()
        if self._modules is not None:
            self._modules.step_begins()

    def _evaluated(self) -> None:
        if not self._says_so:
            self._gradients_ready()

    def _gradients_ready(self) -> None:
        self._clock.gradients_ready()
        if self._weights is not None:
            self._weights.gradients_ready()

    def _step_ends(self, result: Any = None, *, skipped: bool = False) -> None:
        scaling = self._parts("loss scaling")
        skipped = skipped or bool(scaling.run(self._source.skipped, result))
        handle = scaling.run(self._read_found_inf)
        if self._weights is not None:
            self._weights.step_ends(skipped=skipped)
        self._parts("parameters").always(self._source.step_ends)
        deliveries = [] if self._modules is None else list(self._modules.step_ends())
        self.loss_scale.step_ends()
        if skipped:
            self._coverage.skipped_step(self._clock.step)
        if self._collectives is not None:
            deliveries.append((self._collectives.part, self._collectives.part.always(self._collectives.step_ends)))
        event = self._clock.step_ends(skipped=skipped, skip_handle=-1 if handle is None else handle)
        self._hand_over(event)
        # Last, since what receives them may end the program.
        for part, deliver in deliveries:
            if deliver is not None:
                part.run(deliver)
        ends_program = self._request.ends_program and event.sampled
        if self._after_step is not None:
            self._parts("start and stop").run(self._after_step, event)
        if ends_program:
            raise SystemExit(0)

    def _read_found_inf(self) -> int | None:
        found_inf = self.loss_scale.found_inf() if self._clock.sampled else None
        return None if found_inf is None else self._observer.put(found_inf.reshape(1))

    def _hand_over(self, event: StepEnd) -> None:
        results = self._parts("results of steps")
        results.run(self._observer.step_end, event)
        if not results.enabled and len(self.registrations):
            # Nothing that is read could arrive anywhere; it would only pile up.
            self._parts("hooks").always(self._unhook)

    def _step_skipped(self) -> None:
        """A loss scaler has not let the optimizer step; gradients and moments stand as they would have."""
        steps = self._parts("steps")
        steps.run(self._step_begins)
        steps.run(self._gradients_ready)
        steps.always(self._step_ends, skipped=True)
