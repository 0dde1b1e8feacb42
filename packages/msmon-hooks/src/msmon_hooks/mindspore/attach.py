"""Puts the hooks onto a network and its optimizer, and takes them off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from attrs import evolve
from mindspore import nn

from msmon_hooks._events import Observer, StepEnd
from msmon_hooks.activation_gradients import ActivationGradients
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part, logger
from msmon_hooks.l2_hooks import L2Hooks
from msmon_hooks.mindspore import recomputation
from msmon_hooks.mindspore.adam import AdamGroups
from msmon_hooks.mindspore.collectives import CollectiveHooks
from msmon_hooks.mindspore.executor import in_graph_mode
from msmon_hooks.mindspore.framework import MINDSPORE, is_compiled
from msmon_hooks.mindspore.grads.detect import find_source
from msmon_hooks.mindspore.grads.source import GradientSource
from msmon_hooks.mindspore.groups import Groups
from msmon_hooks.mindspore.loss_scale import LossScale
from msmon_hooks.mindspore.module_calls import ModuleCalls
from msmon_hooks.mindspore.named_modules import named_modules
from msmon_hooks.mindspore.optimizer_steps import OptimizerSteps
from msmon_hooks.module_stacks import StackHooks
from msmon_hooks.module_structs import StructureHooks
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.momentum import DIRECTION, MomentumHooks
from msmon_hooks.parameters import Weight, split_by_request
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.training_forwards import TrainingForwards
from msmon_hooks.weights import WeightHooks, WeightParts

_GRAPH_MODE = (
    "MindSpore runs in graph mode: Cells that are compiled run no hooks, so neither activations nor gradients before "
    "the reduction are recorded, and nothing where the whole training step is compiled; "
    "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) makes them visible"
)


class Attachment:
    """Hooks that are in place. :meth:`close` takes all of them off; the network keeps nothing of them.

    Example:
        >>> class Print:
        ...     def measure(self, tensors, scale=None): return [-1] * len(tensors)
        ...     def put(self, values): return -1
        ...     def record(self, refs, handles): print([ref.name for ref in refs])
        ...     def step_end(self, event): print("step", event.step)
        >>> network = nn.Dense(2, 1); optimizer = nn.SGD(network.trainable_params(), 0.1)
        >>> hooks = attach([network], optimizer, Request(weights=True), Clock(), Print(), Coverage())
        >>> gradients = mindspore.value_and_grad(lambda x: network(x).sum(), None, optimizer.parameters)
        >>> _ = optimizer(gradients(mindspore.ops.ones((1, 2)))[1])
        ['weight', 'bias']
        ['weight', 'bias']
        step 0
        >>> hooks.close()
    """

    def __init__(
        self,
        models: Sequence[Any],
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
        self._models = list(models)
        self._optimizer = optimizer
        self._clock = clock
        self._after_step = after_step
        self._parts: dict[str, Part] = {}
        self._calls = ModuleCalls()
        self._step_calls = ModuleCalls()
        self._take(request, observer, coverage)
        self._modules: ModuleHooks | None = None
        self._momentum: MomentumHooks | None = None
        self._features: L2Hooks | None = None
        self._collectives: CollectiveHooks | None = None
        self._first_step: list[StructureHooks | StackHooks] = []
        self._steps = OptimizerSteps(self._part("steps"), self._step_begins, self._step_ends)
        self.loss_scale = LossScale(optimizer)
        self._source = self._find_source()
        self.engine = self._source.engine
        """How the network is trained: ``plain`` or ``data_parallel``."""
        self.weights = self._source.weights()
        """Every parameter of the network, also those that are not monitored."""

    def _take(self, request: Request | None, observer: Observer, coverage: Coverage) -> None:
        self._idle = request is None
        self._request = request or Request()
        self._observer = observer
        self._coverage = coverage
        self._module_names = ShortNames(enabled=self._request.short_names)
        self._weight_names = ShortNames(enabled=self._request.short_names)

    def _find_source(self) -> GradientSource:
        request = self._request
        return find_source(
            self._models,
            self._optimizer,
            main_grad=request.main_grad,
            groups=request.groups or Groups(),
            coverage=self._coverage,
            micro_steps=self._clock.grad_acc_steps,
            sums=request.each_micro_step,
        )

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
            self._optimizer = None

    def _unhook(self) -> None:
        try:
            self.registrations.close()
        finally:
            self.weight_hooks = self._modules = self._momentum = self._features = self._collectives = None
            self._first_step.clear()

    def retire(self) -> None:
        """Take the hooks off from inside a step's callback."""
        self.close()

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
        self._source = self._find_source()
        self.weights = self._source.weights()
        try:
            self._hook()
        except BaseException:
            self._unhook()
            raise

    def attach(self) -> None:
        """Put the hooks on."""
        owned = self.step_registrations
        owned.callback(self._step_calls.close)
        self._step_calls.attach()
        owned.callback(self.loss_scale.close)
        self.loss_scale.attach(self._step_calls, self._stepped, self._step_skipped)
        self._hook()
        self._steps.attach(self._optimizer, self._step_calls, owned)

    def _hook(self) -> None:
        """Put on everything but what notices the optimizer's steps."""
        if self._idle:
            return
        owned = self.registrations
        owned.callback(self._calls.close)
        self._calls.attach()
        recomputation.watch(owned)
        self._report_compiled()
        forwards = TrainingForwards(MINDSPORE, self._models, self._clock, self._part("steps"))
        owned.callback(forwards.close)
        forwards.attach(self._calls)
        self._hook_modules(forwards)
        forwards.attach_ends(self._calls)
        self._hook_collectives()
        self._hook_weights()
        self._report_unmatched()

    def _report_compiled(self) -> None:
        """Say what no hook will see."""
        text = ""
        if in_graph_mode():
            text = _GRAPH_MODE
        else:
            names = [name or "(root)" for (_, name), module in named_modules(self._models).items() if _compiled(module)]
            if names:
                text = f"compiled by jit, so that nothing inside is recorded: {', '.join(names)}"
        if text:
            logger.warning("%s", text)
            self._coverage.note(text)

    # Modules

    def _hook_modules(self, forwards: TrainingForwards) -> None:
        request, owned, modules = self._request, self.registrations, named_modules(self._models)
        for stage in range(len(self._models)):
            self._module_names.learn(stage, [name for at, name in modules if at == stage])
        common: Any = {
            "framework": MINDSPORE,
            "clock": self._clock,
            "observer": self._observer,
            "coverage": self._coverage,
        }
        if request.activations or request.activation_gradients:
            gradients = None
            if request.activation_gradients:
                part = self._part("activation gradients")
                gradients = ActivationGradients(**common, part=part, loss_scale=self.loss_scale)
                owned.callback(gradients.close)
            part = self._part("activations")
            self._modules = ModuleHooks(
                **common, part=part, forwards=forwards, gradients=gradients, forward=request.activations
            )
            owned.callback(self._modules.close)
            self._modules.attach(modules, request.targets, self._module_names, self._calls)
        if request.l2_features:
            part = self._part("L2 features")
            self._features = L2Hooks(**common, part=part, forwards=forwards, calls=self._calls)
            owned.callback(self._features.close)
            self._features.attach(modules, request.l2_features, self._module_names)
        if request.on_structure is not None:
            part = self._part("module structure")
            structures = StructureHooks(part=part, forwards=forwards, on_structure=request.on_structure)
            structures.attach(modules, self._calls)
            self._first_step.append(structures)
        if request.on_stacks is not None:
            stacks = StackHooks(part=self._part("call stacks"), forwards=forwards, on_stacks=request.on_stacks)
            stacks.attach(modules, request.targets, self._module_names, self._calls)
            self._first_step.append(stacks)
        for first in self._first_step:
            owned.callback(first.close)

    def _hook_collectives(self) -> None:
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
            self.weight_hooks = self._make_weight_hooks(taken)
            self.weight_hooks.attach(self.registrations)
        if request.sign_agreement is not None or histograms:
            self._momentum = MomentumHooks(
                framework=MINDSPORE,
                weights=taken,
                source=self._source,
                clock=self._clock,
                observer=self._observer,
                coverage=self._coverage,
                directions=self._part("agreement of gradient and momentum"),
                histograms=self._part("histograms of Adam's update"),
                sign_agreement=None if request.sign_agreement is None else _agreement(request.sign_agreement),
                adam_histograms=request.adam_histograms,
                settings=lambda optimizer: AdamGroups(optimizer).settings,
            )

    def _make_weight_hooks(self, weights: list[Weight]) -> WeightHooks:
        request = self._request
        return WeightHooks(
            framework=MINDSPORE,
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

    # Steps

    def _stepped(self) -> int:
        return self._steps.count

    def _step_begins(self, gradients: Sequence[Any] | None) -> None:
        self._source.consumes(gradients)
        for hooks in (self.weight_hooks, self._momentum, self._features):
            if hooks is not None:
                hooks.step_begins()
        self._clock.gradients_ready()
        for hooks in (self.weight_hooks, self._momentum):
            if hooks is not None:
                hooks.gradients_ready()

    def _step_ends(self, *, skipped: bool = False) -> None:
        steps = self._part("steps")
        if not skipped:
            self._source.updated()
        if self.weight_hooks is not None:
            steps.run(self.weight_hooks.step_ends, skipped=skipped)
        else:
            self._source.step_ends()
        if self._momentum is not None and not skipped:
            self._momentum.step_ends()
        if self._modules is not None:
            steps.run(self._modules.step_ends)
        self.loss_scale.step_ends()
        if skipped:
            self._coverage.skipped_step(self._clock.step)
        deliveries = [steps.run(first.step_ends) for first in self._first_step]
        if self._collectives is not None:
            deliveries.append(steps.run(self._collectives.step_ends))
        event = self._clock.step_ends(skipped=skipped)
        self._part("results of steps").run(self._observer.step_end, event)
        # Last, since what receives them may end the program.
        for deliver in deliveries:
            if deliver is not None:
                steps.run(deliver)
        ends_program = self._request.ends_program and event.sampled
        if self._after_step is not None:
            self._part("start and stop").run(self._after_step, event)
        if ends_program:
            raise SystemExit(0)

    def _step_skipped(self) -> None:
        """A loss scaler has not called the optimizer; moments and weights stand as they would have."""
        self._part("steps").run(self._step_begins, None)
        self._part("steps").always(self._step_ends, skipped=True)

    # The rest

    def _part(self, name: str) -> Part:
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = Part(name, self._coverage.part_failed)
        return part

    def _report_unmatched(self) -> None:
        targets, modules = self._request.targets, named_modules(self._models)
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


def _compiled(module: Any) -> bool:
    return isinstance(module, nn.Cell) and is_compiled(module)


def _agreement(sign_agreement: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Adam's first momentum is a multiple of the first gradient."""
    one = mindspore.Tensor(1.0, mindspore.float32)
    return lambda gradient, momentum: one if momentum is None else sign_agreement(gradient, momentum)


def attach(
    models: Sequence[Any],
    optimizer: Any,
    request: Request | None,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
    after_step: Callable[[StepEnd], None] | None = None,
) -> Attachment:
    """Hook the chunks of a network and the optimizer.

    Args:
        models: the network, or the chunks of a virtual pipeline in order; Cells, or modules of a torch-like adapter.
        optimizer: an optimizer that is called with gradients, or one with a ``step`` method.
        request: what to read; None: nothing yet, only the optimizer's steps are noticed.
        clock: is told of steps and micro-steps, and says which steps are sampled.
        observer: receives the tensors.
        coverage: is told what to expect.
        after_step: called when a step is over and everything of it was delivered.

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
