"""Puts the hooks onto a model and its optimizer, and takes them off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve
from torch import nn

from msmon_hooks._events import Observer, StepEnd
from msmon_hooks.activation_gradients import ActivationGradients
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part, logger
from msmon_hooks.hooks import Hook
from msmon_hooks.l2_hooks import L2Hooks
from msmon_hooks.module_stacks import StackHooks
from msmon_hooks.module_structs import StructureHooks
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.momentum import DIRECTION, MomentumHooks
from msmon_hooks.parameters import Weight, split_by_request
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.torch.adam import AdamGroups
from msmon_hooks.torch.collectives import CollectiveHooks
from msmon_hooks.torch.collectives.writes import writes
from msmon_hooks.torch.directions import agreement
from msmon_hooks.torch.framework import TORCH
from msmon_hooks.torch.grads.detect import find_source
from msmon_hooks.torch.grads.source import GradientSource
from msmon_hooks.torch.groups import Groups
from msmon_hooks.torch.loss_scale import LossScale
from msmon_hooks.torch.model_changes import ModelChanges
from msmon_hooks.torch.module_calls import ModuleCalls
from msmon_hooks.torch.named_modules import named_modules
from msmon_hooks.torch.optimizer_steps import OptimizerSteps
from msmon_hooks.torch.wrappers import unwrapped_optimizer
from msmon_hooks.training_forwards import TrainingForwards
from msmon_hooks.weights import WeightHooks, WeightParts


class Attachment:
    """Hooks that are in place. :meth:`close` takes all of them off; the model keeps nothing of them.

    Example:
        >>> class Print:
        ...     def measure(self, tensors, scale=None): return [-1] * len(tensors)
        ...     def put(self, values): return -1
        ...     def record(self, refs, handles): print([ref.name for ref in refs])
        ...     def step_end(self, event): print("step", event.step)
        >>> import torch
        >>> model = nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> hooks = attach([model], optimizer, Request(weight_gradients=True), Clock(), Print(), Coverage())
        >>> model(torch.ones(1, 2)).sum().backward(); optimizer.step()
        ['bias']
        ['weight']
        ['weight', 'bias']
        step 0
        >>> hooks.close()
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizer: Any,
        request: Request | None,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        after_step: Callable[[StepEnd], None] | None = None,
    ) -> None:
        self.registrations = Registrations()
        self.step_registrations = Registrations()
        """What sits on the optimizer's step."""
        self.weight_hooks: WeightHooks | None = None
        self.loss_scale: LossScale
        self.forwards: TrainingForwards | None = None
        self._models = list(models)
        self._clock = clock
        self._after_step = after_step
        self._parts: dict[str, Part] = {}
        self._calls = ModuleCalls()
        self._weight_registrations = Registrations()
        self._take(request, observer, coverage)
        self._modules: ModuleHooks | None = None
        self._momentum: MomentumHooks | None = None
        self._features: L2Hooks | None = None
        self._collectives: CollectiveHooks | None = None
        self._first_step: list[StructureHooks | StackHooks] = []
        self._source = self._find_source(unwrapped_optimizer(optimizer))
        self.engine = self._source.engine
        """What trains the model: ``plain``, ``ddp``, ``fsdp2`` and so on."""
        self.weights = self._source.weights()
        """Every parameter of the model, also those that are not monitored."""

    def _take(self, request: Request | None, observer: Observer, coverage: Coverage) -> None:
        self._idle = request is None
        self._request = request or Request()
        self._observer = observer
        self._coverage = coverage
        self._module_names = ShortNames(enabled=self._request.short_names)
        self._weight_names = ShortNames(enabled=self._request.short_names)

    def describe(self) -> list[dict[str, Any]]:
        """Name, shape, dtype and parts of every parameter, as ``run.json`` has them."""
        return [self._source.describe(weight) for weight in self._shortened(self.weights)]

    def close(self) -> None:
        """Take every hook and patch off; harmless when called again."""
        try:
            self._unhook()
        finally:
            self.step_registrations.close()
            self._models.clear()

    def _unhook(self) -> None:
        try:
            self.registrations.close()
        finally:
            self.weight_hooks = self._modules = self._momentum = self._features = self._collectives = None
            self.forwards = None
            self._first_step.clear()

    def reattach(self, request: Request | None, observer: Observer, coverage: Coverage) -> None:
        """Read something else from now on; None: nothing, and only the optimizer's step is still noticed.

        It may be called between two steps and from inside of ``after_step``.

        Raises:
            Exception: whatever hooking raises; the hooks that were set are taken off before.
        """
        self._part("hooks").always(self._unhook)
        # What failed before is tried again; the part that notices steps goes on.
        self._parts = {name: self._part(name) for name in ("steps", "start and stop")}
        self._take(request, observer, coverage)
        self._source = self._find_source(self._source.optimizer)
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
        """It has ended; ``output`` holds the loss."""
        if self.forwards is not None:
            self.forwards.part.run(self.forwards.leave, 0, output)

    def retire(self) -> None:
        """Take the hooks off from inside a step's callback.

        Hooks of the optimizer cannot be removed while it runs through them, so these go when the next forward of
        the root begins.
        """
        self.registrations.close()
        if len(self.step_registrations) and self._models:
            self.step_registrations.add(self._models[0].register_forward_pre_hook(_CloseOnForward(self)))

    def attach(self) -> None:
        """Put the hooks on."""
        steps = OptimizerSteps(self._part("steps"), self._step_begins, self._evaluated, self._step_ends)
        self.loss_scale = LossScale(self._source.optimizer, lambda: steps.count, self._step_skipped)
        self.loss_scale.attach(self.step_registrations)
        self._hook()
        steps.attach(self._source.optimizer, self.step_registrations)

    def _hook(self) -> None:
        """Put on everything but what notices the optimizer's steps."""
        self._says_so = False
        if self._idle:
            return
        owned = self.registrations
        owned.callback(self._calls.close)
        owned.callback(self._weight_registrations.close)
        # An engine may consume its gradients in the middle of the step, and says so itself.
        update = self._part("gradients at the update")
        self._says_so = bool(update.run(self._source.attach_update, self._gradients_ready, owned))
        micro_steps = self._parts["micro-steps"] = Part("micro-steps", self._micro_steps_failed)
        forwards = self.forwards = TrainingForwards(TORCH, self._models, self._clock, micro_steps)
        owned.callback(forwards.close)
        forwards.attach(self._calls)
        changes = ModelChanges(self._models, self._source.optimizer, self._model_changed)
        owned.callback(changes.close)
        changing = self._part("changes of the model")
        forwards.before_sampled.append(lambda: changing.run(changes.check))
        self._make_module_hooks(forwards)
        self._hook_modules()
        for first in self._first_step:
            owned.callback(first.close)
        self._attach_first_step()
        forwards.attach_ends(self._calls)
        self._part("collectives").run(self._hook_collectives)
        self._part("parameters").run(self._hook_weights)
        self._part("names of targets").run(self._report_unmatched)

    def _micro_steps_failed(self, part: str, reason: str) -> None:
        self._coverage.part_failed(part, reason)
        # Their rows would carry the wrong micro-step.
        for name in ("activations", "activation gradients", "L2 features"):
            if name in self._parts:
                self._parts[name].fail(RuntimeError("it needs micro-steps"))

    # Modules

    def _make_module_hooks(self, forwards: TrainingForwards) -> None:
        request, owned = self._request, self.registrations
        common: dict[str, Any] = {
            "framework": TORCH,
            "clock": self._clock,
            "observer": self._observer,
            "coverage": self._coverage,
        }
        if request.activations or request.activation_gradients:
            gradients = None
            if request.activation_gradients:
                gradients = ActivationGradients(
                    **common, part=self._part("activation gradients"), loss_scale=self.loss_scale
                )
                owned.callback(gradients.close)
            self._modules = ModuleHooks(
                **common,
                part=self._part("activations"),
                forwards=forwards,
                gradients=gradients,
                forward=request.activations,
            )
            owned.callback(self._modules.close)
        if request.l2_features:
            part = self._part("L2 features")
            self._features = L2Hooks(**common, part=part, forwards=forwards, calls=self._calls)
            owned.callback(self._features.close)
        if request.on_structure is not None:
            part = self._part("module structure")
            self._first_step.append(StructureHooks(part=part, forwards=forwards, on_structure=request.on_structure))
        if request.on_stacks is not None:
            part = self._part("call stacks")
            self._first_step.append(StackHooks(part=part, forwards=forwards, on_stacks=request.on_stacks))

    def _hook_modules(self) -> None:
        modules = named_modules(self._models)
        for stage in range(len(self._models)):
            self._module_names.learn(stage, [name for at, name in modules if at == stage])
        if self._modules is not None:
            self._modules.part.run(
                self._modules.attach, modules, self._request.targets, self._module_names, self._calls
            )
        if self._features is not None:
            self._features.part.run(self._features.attach, modules, self._request.l2_features, self._module_names)

    def _attach_first_step(self) -> None:
        modules = named_modules(self._models)
        for hooks in self._first_step:
            if isinstance(hooks, StructureHooks):
                hooks.part.run(hooks.attach, modules, self._calls)
            else:
                hooks.part.run(hooks.attach, modules, self._request.targets, self._module_names, self._calls)

    def _model_changed(self) -> None:
        """Modules or parameters are others than before; nothing of the model runs now."""
        self._calls.refresh()
        self._hook_modules()
        # Engines keep parameters of their own under the model's names.
        if self.engine == "plain":
            self._source = self._find_source(self._source.optimizer)
            self.weights = self._source.weights()
            self._weight_registrations.close()
            self._hook_weights()

    def _hook_collectives(self) -> None:
        if self._modules is not None:
            writes.watch(self.registrations)
        if self._request.collectives is not None:
            self._collectives = CollectiveHooks(
                self._request.collectives,
                clock=self._clock,
                observer=self._observer,
                part=self._part("collectives"),
                coverage=self._coverage,
            )
            self._collectives.attach(self.registrations)

    # Weights

    def _hook_weights(self) -> None:
        request = self._request
        for stage in range(len(self._models)):
            self._weight_names.learn(stage, [weight.name for weight in self.weights if weight.vpp_stage == stage])
        wanted = [
            *(("grad_unreduced", "grad_reduced") if request.weight_gradients else ()),
            *(("exp_avg", "exp_avg_sq") if request.moments else ()),
            *(("param_origin", "param_updated") if request.weights else ()),
            *((DIRECTION,) if request.sign_agreement is not None else ()),
        ]
        histograms = request.adam_histograms is not None
        if not (wanted or histograms):
            return
        taken, left_out = split_by_request(self.weights, request.targets, self._source.trains)
        for weight, reason in left_out:
            for data_type in wanted:
                self._coverage.explain(data_type, self._weight_names(weight.vpp_stage, weight.name), reason)
        taken = self._shortened(taken)
        if request.weight_gradients or request.moments or request.weights:
            self.weight_hooks = None
            hooks = self._make_weight_hooks(taken)
            hooks.attach(self._weight_registrations)
            self.weight_hooks = hooks
        if request.sign_agreement is not None or histograms:
            self._momentum = MomentumHooks(
                framework=TORCH,
                weights=taken,
                source=self._source,
                clock=self._clock,
                observer=self._observer,
                coverage=self._coverage,
                directions=self._part("agreement of gradient and momentum"),
                histograms=self._part("histograms of Adam's update"),
                sign_agreement=None if request.sign_agreement is None else agreement(request.sign_agreement),
                adam_histograms=request.adam_histograms,
                settings=lambda optimizer: AdamGroups(optimizer).settings,
            )

    def _make_weight_hooks(self, weights: list[Weight]) -> WeightHooks:
        request = self._request
        return WeightHooks(
            framework=TORCH,
            weights=weights,
            source=self._source,
            clock=self._clock,
            observer=self._observer,
            coverage=self._coverage,
            parts=WeightParts(
                gradients=self._part("weight gradients") if request.weight_gradients else None,
                moments=self._part("optimizer moments") if request.moments else None,
                weights=self._part("weights") if request.weights else None,
            ),
            each_micro_step=request.each_micro_step,
            loss_scale=self.loss_scale,
        )

    def _shortened(self, weights: Sequence[Weight]) -> list[Weight]:
        """The weights under the names that rows carry; the full name becomes an alias."""
        found = []
        for weight in weights:
            short = self._weight_names(weight.vpp_stage, weight.name)
            same = short == weight.name
            found.append(weight if same else evolve(weight, name=short, aliases=(weight.name, *weight.aliases)))
        return found

    def _find_source(self, optimizer: Any) -> GradientSource:
        request = self._request
        return find_source(
            self._models,
            optimizer,
            main_grad=request.main_grad,
            groups=request.groups or Groups(),
            coverage=self._coverage,
        )

    # Steps

    def _step_begins(self) -> None:
        if self._clock.sampled:
            # A root that was compiled meanwhile calls no hook that could have noticed.
            self._calls.refresh()
        for hooks in (self.weight_hooks, self._momentum):
            if hooks is not None:
                self._part("parameters").run(hooks.step_begins)
        if self._features is not None:
            self._features.part.run(self._features.step_begins)

    def _evaluated(self) -> None:
        if not self._says_so:
            self._gradients_ready()

    def _gradients_ready(self) -> None:
        self._clock.gradients_ready()
        for hooks in (self.weight_hooks, self._momentum):
            if hooks is not None:
                hooks.gradients_ready()

    def _step_ends(self, result: Any, *, skipped: bool = False) -> None:
        scaling = self._part("loss scaling")
        skipped = skipped or bool(scaling.run(self._source.skipped, result))
        handle = scaling.run(self._read_found_inf)
        # What failed before is still cleaned up, or it would keep tensors alive.
        if self.weight_hooks is not None:
            self._part("parameters").always(self.weight_hooks.step_ends, skipped=skipped)
        if self._momentum is not None and not skipped:
            self._momentum.step_ends()
        if self._modules is not None:
            self._modules.part.always(self._modules.step_ends)
        self.loss_scale.step_ends()
        if skipped:
            self._coverage.skipped_step(self._clock.step)
        deliveries = [(first.part, first.part.run(first.step_ends)) for first in self._first_step]
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
            self._part("start and stop").run(self._after_step, event)
        if ends_program:
            raise SystemExit(0)

    def _read_found_inf(self) -> int | None:
        found_inf = self.loss_scale.found_inf() if self._clock.sampled else None
        return None if found_inf is None else self._observer.put(found_inf.reshape(1))

    def _hand_over(self, event: StepEnd) -> None:
        results = self._part("results of steps")
        results.run(self._observer.step_end, event)
        if not results.enabled and len(self.registrations):
            # Nothing that is read could arrive anywhere; it would only pile up.
            self._part("hooks").always(self._unhook)

    def _step_skipped(self) -> None:
        """A loss scaler has not called the optimizer's step; gradients and moments stand as they would have."""
        steps = self._part("steps")
        steps.run(self._step_begins)
        steps.run(self._gradients_ready)
        steps.always(self._step_ends, None, skipped=True)

    # The rest

    def _part(self, name: str) -> Part:
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = Part(name, self._coverage.part_failed)
        return part

    def _report_unmatched(self) -> None:
        targets = self._request.targets
        modules = named_modules(self._models)
        for stage, name in modules:
            targets.module(stage, name)
        for weight in self.weights:
            targets.parameter(weight.vpp_stage, weight.name)
        known = [*(weight.name for weight in self.weights), *(name for _, name in modules)]
        for name, near in targets.unmatched(known).items():
            text = f"targets: nothing in the model is called {name!r}"
            if near:
                text += f"; near: {', '.join(near)}"
            logger.warning("%s", text)
            self._coverage.note(text)


class _CloseOnForward(Hook):
    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def __call__(self, module: nn.Module, args: Any) -> None:
        Part("the end of collection").run(self.attachment.close)


def attach(
    models: Sequence[nn.Module],
    optimizer: Any,
    request: Request | None,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
    after_step: Callable[[StepEnd], None] | None = None,
) -> Attachment:
    """Hook the model chunks and the optimizer.

    Args:
        models: the model, or the chunks of a virtual pipeline in order.
        optimizer: any object with a ``step`` method; wrappers are unwrapped.
        request: what to read; None: nothing yet, only notice the optimizer's steps.
        clock: is told of steps and micro-steps, and says which steps are sampled.
        observer: receives the tensors.
        coverage: is told what to expect.
        after_step: called when a step is over and the observer has been told.

    Raises:
        Exception: whatever hooking raises; all hooks that were set are taken off before.
    """
    attachment = Attachment(models, optimizer, request, clock, observer, coverage, after_step)
    try:
        attachment.attach()
    except BaseException:
        attachment.close()
        raise
    return attachment
