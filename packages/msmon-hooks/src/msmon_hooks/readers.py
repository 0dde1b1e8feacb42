"""Everything that one request has read: which hooks that takes, set in the right order, and what they do in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msmon_hooks.activation_gradients import ActivationGradients
from msmon_hooks.call_hooks import AfterCall, CallHooks
from msmon_hooks.collective_rows import CollectiveRows
from msmon_hooks.coverage import FROZEN
from msmon_hooks.data_types import ADAM_HISTOGRAM
from msmon_hooks.events import StepEnd
from msmon_hooks.framework_hooks import FrameworkHooks, InsideCompiled
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.l2_hooks import L2Hooks
from msmon_hooks.module_stacks import StackHooks
from msmon_hooks.module_structs import StructureHooks
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.momentum import DIRECTION, MomentumHooks
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameters import Weight, shortened, split_by_request
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.training_forwards import TrainingForwards
from msmon_hooks.weights import WeightHooks

_LAZY = "its lazy module has not run yet, so it has no shape"
_ENDLESS = (
    "{} training forwards and no step of the optimizer that set_monitor was given: what was collected is dropped. If "
    "the weights are updated in another way, call monitor.step() after each update (see engines/loops.md)"
)

Modules = Mapping[tuple[int, str], Any]
"""Stage and plain name to module."""


class Readers:
    """What one request has put onto models and parameters.

    Args:
        hooks: the framework's.
        models: the model, or the chunks of a virtual pipeline in order.
        source: says where the gradients are.
        recording: the request in force.
        steps: of the optimizer.
        lasting: owns what stays on when something else is read, or nothing.
    """

    def __init__(
        self,
        hooks: FrameworkHooks,
        models: Sequence[Any],
        source: GradientSource,
        recording: Recording,
        steps: OptimizerSteps[Any],
        lasting: Registrations,
    ) -> None:
        request, guards = recording.request, recording.guards
        self.recording = recording
        self.weights: WeightHooks | None = None
        """Reads gradients, moments and weights; None where none of these is asked for."""
        self._hooks = hooks
        self._models = list(models)
        self._source = source
        self._steps = steps
        self._registrations = Registrations()
        self._of_source = Registrations()
        self._call_hooks = hooks.call_hooks()
        self._module_names = ShortNames(enabled=request.short_names)
        self._weight_names = ShortNames(enabled=request.short_names)
        self._all_weights, self._lazy = self._named_weights()
        self._momentum: MomentumHooks | None = None
        self._parameters = guards("parameters")
        forwards = self.forwards = TrainingForwards(recording, models, guards("micro-steps", self._micro_steps_failed))
        self._activations: ModuleHooks | None = None
        self._inside: InsideCompiled | None = None
        self._features: L2Hooks | None = None
        self._structure: StructureHooks | None = None
        self._stacks: StackHooks | None = None
        self._collectives: CollectiveRows | None = None
        self._delivers = any(one is not None for one in (request.on_structure, request.on_stacks, request.collectives))
        self._begun = False
        self._changes: Any = None
        if request.activations or request.activation_gradients:
            gradients = ActivationGradients(recording) if request.activation_gradients else None
            self._activations = ModuleHooks(recording, forwards, self._call_hooks, gradients)
            if request.inside_compiled and hooks.inside_compiled is not None:
                self._inside = hooks.inside_compiled(recording, forwards, self._call_hooks, self._activations, lasting)
        if request.l2_features:
            self._features = L2Hooks(recording, forwards, self._call_hooks)
        if request.on_structure is not None:
            self._structure = StructureHooks(recording, forwards, hooks.call_hooks())
        if request.on_stacks is not None:
            self._stacks = StackHooks(recording, forwards, hooks.call_hooks())
        if request.collectives is not None:
            self._collectives = hooks.collective_rows(recording, request.collectives)

    # Putting on and taking off

    def attach(self) -> None:
        """Set the hooks."""
        recording, guards, owned = self.recording, self.recording.guards, self._registrations
        owned.callback(guards.stop)
        recording.coverage.ask(asked_types(recording.request))
        owned.callback(self._models.clear)
        for one in (self._call_hooks, self._of_source, self.forwards):
            owned.callback(one.close)
        for reader in (self._activations, self._inside, self._features, self._structure, self._stacks):
            if reader is not None:
                owned.callback(reader.close)
        self._hooks.prepare(self._models, recording, owned)
        self._attach_update()
        self.forwards.dropped = self._gradients_dropped
        if self._activations is not None:
            self.forwards.restarted.append(self._activations.forget)
        if self._inside is not None:
            self.forwards.restarted.append(self._inside.forget)
        self.forwards.before += [self._steps.forward_begins, self._check_length]
        self.forwards.attach(self._call_hooks)
        modules = self._hooks.named_modules(self._models)
        self._attach_modules(modules)
        if self._structure is not None:
            self._structure.guard.run(self._structure.attach, modules)
        if self._stacks is not None:
            self._stacks.guard.run(self._stacks.attach, modules, self._module_names)
        self.forwards.attach_ends(self._call_hooks)
        if self._collectives is not None:
            self._collectives.guard.run(self._collectives.attach, owned)
        self._parameters.run(self._attach_weights)
        guards("names of targets").run(self._report_unmatched, modules)
        if self._hooks.model_changes is not None:
            self._watch_model(self._hooks.model_changes)

    def close(self) -> None:
        """Take everything off; harmless when called again."""
        self._registrations.close()

    def _attach_update(self) -> None:
        update = self.recording.guards("gradients at the update")
        update.run(self._source.attach_update, self._gradients_ready, self._steps, self._of_source)

    def _attach_modules(self, modules: Modules) -> None:
        """Hook modules for good. Called again: what has changed since."""
        for stage in range(len(self._models)):
            self._module_names.learn(stage, [name for at, name in modules if at == stage])
        if self._inside is not None:
            # First, so that hooks have the same order when its marks were on already: that is guarded.
            self._inside.guard.run(self._inside.attach, modules)
        if self._activations is not None:
            self._activations.guard.run(self._activations.attach, modules, self._module_names)
        if self._features is not None:
            self._features.guard.run(self._features.attach, modules, self._module_names)

    def _named_weights(self) -> tuple[list[Weight], list[Weight]]:
        """The parameters as they are now, and those of lazy modules that have no shape yet."""
        weights, is_initialized = self._source.weights(), self.recording.framework.is_initialized
        lazy = [weight for weight in weights if not is_initialized(weight.parameter)]
        return [weight for weight in weights if weight not in lazy], lazy

    def _attach_weights(self) -> None:
        request, source = self.recording.request, self._source
        self.weights = self._momentum = None
        for stage in range(len(self._models)):
            self._weight_names.learn(stage, [w.name for w in self._all_weights if w.vpp_stage == stage])
        wanted = _wanted_types(request)
        if not wanted and request.adam_histograms is None:
            return
        taken, left_out = split_by_request(self._all_weights, request.targets, source.trains)
        not_yet, _ = split_by_request(self._lazy, request.targets, lambda weight: True)
        for weight, reason in [*left_out, *((weight, _LAZY) for weight in not_yet)]:
            for data_type in wanted:
                name = self._weight_names(weight.vpp_stage, weight.name)
                kind = FROZEN if reason == FROZEN else ""
                self.recording.coverage.explain(data_type, name, reason, kind=kind, stage=weight.vpp_stage)
        weights = shortened(taken, self._weight_names)
        if request.weight_gradients or request.moments or request.weights:
            hooks = WeightHooks(self.recording, weights, source, self._steps.updated, self._give_up)
            hooks.attach(self._of_source)
            self.weights = hooks
        if request.sign_agreement is not None or request.adam_histograms is not None:
            agreement = request.sign_agreement
            self._momentum = MomentumHooks(
                self.recording,
                weights,
                source,
                sign_agreement=None if agreement is None else self._hooks.agreement(agreement),
                settings=self._hooks.adam_settings,
            )

    def _micro_steps_failed(self, name: str, reason: str) -> None:
        self.recording.coverage.switched_off(name, reason)
        # Their rows would carry the wrong micro-step.
        for other in ("activations", "activation gradients", "L2 features"):
            if other in self.recording.guards:
                self.recording.guards(other).fail(RuntimeError("it needs micro-steps"))

    def _gradients_dropped(self) -> bool:
        # Closures clear gradients, too.
        return self.recording.clock.sampled and not self._steps.running and self._source.has_none()

    def _check_length(self) -> None:
        """A step that never ends must not take memory without end. One whose closure is called often does end."""
        if self.recording.clock.is_endless:
            self._give_up()

    def _give_up(self) -> None:
        recording, clock = self.recording, self.recording.clock
        if self._steps.running:
            return
        clock.give_up()
        recording.observer.discard()
        if self._activations is not None:
            self._activations.guard.always(self._activations.forget)
        if self._inside is not None:
            self._inside.guard.always(self._inside.forget)
        text = _ENDLESS.format(clock.longest)
        logger.warning("step %d: %s", clock.step, text)
        recording.coverage.note(f"step {clock.step}: {text}")

    def _report_unmatched(self, modules: Modules) -> None:
        targets = self.recording.request.targets
        for stage, name in modules:
            targets.module(stage, name)
        for weight in self._all_weights:
            targets.parameter(weight.vpp_stage, weight.name)
        known = [*(weight.name for weight in self._all_weights), *(name for _, name in modules)]
        for text in targets.unmatched("targets", known):
            logger.warning("%s", text)
            self.recording.coverage.note(text, asked_types(self.recording.request))

    def _watch_model(self, model_changes: Callable[..., Any]) -> None:
        changes = model_changes(self._models, self._source.optimizer, self.model_changed)
        self._changes = changes
        self._registrations.callback(changes.close)
        guard, clock = self.recording.guards("changes of the model"), self.recording.clock

        described = [guard.run(self.describe)]

        def check() -> None:
            # While nothing of the model runs yet.
            if clock.sampled and not clock.in_step:
                guard.run(changes.check)
                # Once: until now the script may have converted the model, which leaves its parameters the same objects.
                if described and described.pop() != guard.run(self.describe):
                    guard.run(self.model_changed)

        self.forwards.before.append(check)
        if self._lazy:
            for model in self._models:
                self._call_hooks.add(model, _FirstForwardEnds(guard, self._call_hooks, changes.check))

    def follow(self, optimizer: Any) -> None:
        """Another optimizer updates the weights."""
        self._source.follow(optimizer)
        if self._changes is not None:
            self._changes.follow(optimizer)

    def model_changed(self) -> None:
        """Modules, parameters or the optimizer are others than before: hook what is new."""
        self._call_hooks.refresh()
        self._attach_modules(self._hooks.named_modules(self._models))
        self._source = self._hooks.find_source(self._models, self._source.optimizer, self.recording)
        self._all_weights, self._lazy = self._named_weights()
        self._of_source.close()
        self._attach_update()
        self._attach_weights()
        if self.recording.request.on_parameters is not None:
            self.recording.request.on_parameters(self._source.engine, self.describe())

    # What is read

    def describe(self) -> list[dict[str, Any]]:
        """Name, shape, dtype and parts of every parameter, as `run.json` has them, also of those that are not read."""
        return [self._source.describe(weight) for weight in shortened(self._all_weights, self._weight_names)]

    def step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step, called with these arguments: read what stands before the update."""
        self.forwards.keep()
        updating = self._steps.updating
        self._parameters.run(self._source.step_begins, args, kwargs, updating)
        if self.recording.clock.sampled and not self._begun:
            # A root that was compiled meanwhile calls no hook that could have noticed.
            self._call_hooks.refresh()
        if self.weights is not None:
            self._parameters.run(self.weights.step_begins, updating)
        if self._momentum is not None:
            self._parameters.run(self._momentum.step_begins, updating)
        if self._features is not None and not self._begun:
            self._features.guard.run(self._features.step_begins)
        self._begun = True

    def _gradients_ready(self) -> None:
        """Read the gradients that the update consumes."""
        if self._activations is not None and self.recording.clock.sampled:
            guard, source = self._activations.guard, self._source
            guard.run(self._activations.gradients_ready, self._all_weights, lambda w: source.reduced(w) is not None)
        if self.weights is not None:
            self.weights.gradients_ready(self._steps.updating)
        if self._momentum is not None:
            self._momentum.gradients_ready(self._steps.updating)

    def step_ends(self, result: Any, *, skipped: bool) -> StepEnd:
        """The optimizer has stepped, and returned `result`: read what stands after the update, and hand everything
        over. `skipped`: there was no update."""
        recording, guards = self.recording, self.recording.guards
        self._begun = False
        sampled, scaling = recording.clock.sampled, guards("loss scaling")
        skipped = skipped or bool(scaling.run(self._source.skipped, result))
        skip_handle = scaling.run(self._read_found_inf) if sampled else None
        # What has failed is still cleaned up, or it would keep tensors alive.
        self._parameters.always(self._source.step_ends, skipped=skipped)
        if self.weights is not None:
            self._parameters.always(self.weights.step_ends, skipped=skipped)
        if self._momentum is not None and not skipped:
            self._momentum.step_ends()
        if self._activations is not None:
            self._activations.guard.always(self._activations.step_ends)
        if self._inside is not None:
            self._inside.guard.always(self._inside.step_ends)
        deliveries = self._deliveries() if self._delivers else []
        if self.forwards.earliest:
            recording.clock.drop_before(self.forwards.earliest)
        self.forwards.earliest = None
        if skipped:
            recording.coverage.skipped_step(recording.clock.step)
        event = recording.clock.step_ends(skipped=skipped, skip_handle=-1 if skip_handle is None else skip_handle)
        results = guards("results of steps")
        results.run(recording.observer.step_end, event)
        if not results.enabled and len(self._registrations):
            # Nothing that is read could arrive anywhere; it would only pile up.
            Guarded("hooks", recording.coverage.switched_off).run(self.close)
        # Last, since what receives them may end the program.
        for guard, deliver in deliveries:
            guard.always(deliver)
        return event

    def _deliveries(self) -> list[tuple[Guarded, Callable[[], None]]]:
        """What the first step has given, each with what guards its delivery."""
        found = []
        for reader in (self._structure, self._stacks, self._collectives):
            deliver = None if reader is None else reader.guard.run(reader.step_ends)
            if reader is not None and deliver is not None:
                found.append((reader.guard, deliver))
        for once in (self._structure, self._stacks):
            if once is not None:
                once.guard.always(once.close)
        self._structure = self._stacks = None
        self._delivers = self._collectives is not None
        return found

    def _read_found_inf(self) -> int | None:
        recording = self.recording
        found_inf = recording.loss_scale.found_inf()
        return None if found_inf is None else recording.observer.put(found_inf.reshape(1))


class _FirstForwardEnds(AfterCall):
    """The first forward has given the parameters of lazy modules their shapes: its backward is recorded already."""

    def __init__(self, guard: Guarded, calls: CallHooks, check: Callable[[], None]) -> None:
        super().__init__(guard)
        self.calls = calls
        self.check = check

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.calls.remove(module, self)
        self.check()


def asked_types(request: Request) -> list[str]:
    """The data types of which there should be rows, except of collectives: a program need not have any."""
    return [
        *(("actv",) if request.activations else ()),
        *(("actv_grad",) if request.activation_gradients else ()),
        *_wanted_types(request),
        *((ADAM_HISTOGRAM,) if request.adam_histograms is not None else ()),
        *request.l2_features,
    ]


def _wanted_types(request: Request) -> list[str]:
    """The data types of parameters that are asked for."""
    return [
        *(("grad_unreduced", "grad_reduced") if request.weight_gradients else ()),
        *(("exp_avg", "exp_avg_sq") if request.moments else ()),
        *(("param_origin", "param_updated") if request.weights else ()),
        *((DIRECTION,) if request.sign_agreement is not None else ()),
    ]
