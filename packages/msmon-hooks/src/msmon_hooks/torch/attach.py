"""Puts the hooks onto a model and its optimizer, and takes them off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import field, frozen
from torch import nn

from msmon_hooks._events import Observer
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part, logger
from msmon_hooks.registrations import Registrations
from msmon_hooks.targets import Targets
from msmon_hooks.torch.activation_gradients import ActivationGradients
from msmon_hooks.torch.grads.detect import find_source
from msmon_hooks.torch.grads.source import GradientSource
from msmon_hooks.torch.groups import Groups
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.modules import ModuleHooks, TrainingForwards, named_modules
from msmon_hooks.torch.optimizer_steps import OptimizerSteps
from msmon_hooks.torch.parameters import split_by_request
from msmon_hooks.torch.weights import WeightHooks, WeightParts
from msmon_hooks.torch.wrappers import unwrapped_optimizer


@frozen(kw_only=True)
class Request:
    """What is to be read."""

    targets: Targets = field(factory=lambda: Targets({}))
    activations: bool = False
    activation_gradients: bool = False
    weight_gradients: bool = False
    each_micro_step: bool = False
    """Weight gradients of every micro-step, not only of the last."""
    moments: bool = False
    weights: bool = False
    main_grad: bool = True
    """Read ``param.main_grad`` where it exists."""
    groups: Groups = field(factory=Groups)
    """Ranks that hold the same tensors."""


class Attachment:
    """Hooks that are in place. :meth:`close` takes all of them off; the model keeps nothing of them.

    Example:
        >>> class Print:
        ...     def measure(self, tensors, scale=None): return [-1] * len(tensors)
        ...     def record(self, refs, handles): print([ref.name for ref in refs])
        ...     def step_end(self, event): print("step", event.step)
        >>> model = nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> hooks = attach([model], optimizer, Request(weight_gradients=True), Clock(), Print(), Coverage())
        >>> model(torch.ones(1, 2)).sum().backward(); optimizer.step()
        ['bias']
        ['weight']
        ['weight', 'bias']
        step 0
        >>> hooks.close()
    """

    def __init__(self, source: GradientSource, root: nn.Module) -> None:
        self.weights = source.weights()
        """Every parameter of the model, also those that are not monitored."""
        self.engine = source.engine
        """What trains the model: ``plain``, ``ddp``, ``fsdp2`` and so on."""
        self.registrations = Registrations()
        self.step_registrations = Registrations()
        """What sits on the optimizer's step."""
        self.weight_hooks: WeightHooks | None = None
        self._source = source
        self._root = root

    def describe(self) -> list[dict[str, Any]]:
        """Name, shape, dtype and parts of every parameter, as ``run.json`` has them."""
        return [self._source.describe(weight) for weight in self.weights]

    def close(self) -> None:
        """Take every hook and patch off; harmless when called again."""
        self.registrations.close()
        self.step_registrations.close()
        self.weight_hooks = None

    def retire(self) -> None:
        """Take the hooks off from inside a step's callback.

        Hooks of the optimizer cannot be removed while it runs through them, so these go when the next forward of
        the root begins.
        """
        self.registrations.close()
        if len(self.step_registrations):
            self.step_registrations.add(self._root.register_forward_pre_hook(_CloseOnForward(self)))


class _CloseOnForward(Hook):
    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.attachment.close()


def attach(
    models: Sequence[nn.Module],
    optimizer: Any,
    request: Request,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
) -> Attachment:
    """Hook the model chunks and the optimizer.

    Args:
        models: the model, or the chunks of a virtual pipeline in order.
        optimizer: any object with a ``step`` method; wrappers are unwrapped.
        request: what to read.
        clock: is told of steps and micro-steps, and says which steps are sampled.
        observer: receives the tensors.
        coverage: is told what to expect.

    Raises:
        Exception: whatever hooking raises; all hooks that were set are taken off before.
    """
    source = find_source(
        models,
        unwrapped_optimizer(optimizer),
        main_grad=request.main_grad,
        groups=request.groups,
        coverage=coverage,
    )
    attachment = Attachment(source, models[0])
    try:
        _attach(attachment, source, models, request, clock, observer, coverage)
    except BaseException:
        attachment.close()
        raise
    return attachment


def _attach(
    attachment: Attachment,
    source: GradientSource,
    models: Sequence[nn.Module],
    request: Request,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
) -> None:
    owned = attachment.registrations

    def part(name: str) -> Part:
        return Part(name, coverage.part_failed)

    steps = part("steps")
    forwards = TrainingForwards(clock, steps)
    forwards.attach(models, owned)

    modules: ModuleHooks | None = None
    known = [weight.name for weight in attachment.weights]
    known += [name for model in models for name, _ in named_modules(model)]
    if request.activations or request.activation_gradients:
        gradients = None
        if request.activation_gradients:
            gradients = ActivationGradients(
                clock=clock, observer=observer, part=part("activation gradients"), coverage=coverage
            )
            owned.callback(gradients.close)
        modules = ModuleHooks(
            clock=clock,
            observer=observer,
            part=part("activations"),
            coverage=coverage,
            training=forwards,
            gradients=gradients,
            forward=request.activations,
        )
        modules.attach(models, request.targets, owned)
    forwards.attach_ends(owned)

    weights = _attach_weights(attachment, source, request, clock, observer, coverage, part)
    _report_unmatched(request.targets, known, coverage)
    _attach_steps(source, steps, clock, observer, modules, weights, attachment.step_registrations)


def _attach_weights(
    attachment: Attachment,
    source: GradientSource,
    request: Request,
    clock: Clock,
    observer: Observer,
    coverage: Coverage,
    part: Callable[[str], Part],
) -> WeightHooks | None:
    if not (request.weight_gradients or request.moments or request.weights):
        return None
    taken, left_out = split_by_request(attachment.weights, request.targets, source.trains)
    wanted = [
        *(("grad_unreduced", "grad_reduced") if request.weight_gradients else ()),
        *(("exp_avg", "exp_avg_sq") if request.moments else ()),
        *(("param_origin", "param_updated") if request.weights else ()),
    ]
    for weight, reason in left_out:
        for data_type in wanted:
            coverage.explain(data_type, weight.name, reason)
    hooks = WeightHooks(
        weights=taken,
        source=source,
        clock=clock,
        observer=observer,
        coverage=coverage,
        parts=WeightParts(
            gradients=part("weight gradients") if request.weight_gradients else None,
            moments=part("optimizer moments") if request.moments else None,
            weights=part("weights") if request.weights else None,
        ),
        each_micro_step=request.each_micro_step,
    )
    hooks.attach(attachment.registrations)
    attachment.weight_hooks = hooks
    return hooks


def _attach_steps(
    source: GradientSource,
    steps: Part,
    clock: Clock,
    observer: Observer,
    modules: ModuleHooks | None,
    weights: WeightHooks | None,
    owned: Registrations,
) -> None:
    def begins(gradients_ready: bool) -> None:
        if gradients_ready:
            evaluated()
        if weights is not None:
            steps.run(weights.step_begins)

    def evaluated() -> None:
        if weights is not None:
            steps.run(weights.gradients_ready)

    def ends(result: Any) -> None:
        if weights is not None:
            steps.run(weights.step_ends)
        if modules is not None:
            steps.run(modules.step_ends)
        event = clock.step_ends(skipped=bool(steps.run(source.skipped, result)))
        steps.run(observer.step_end, event)

    OptimizerSteps(begins, evaluated, ends).attach(source.optimizer, owned)


def _report_unmatched(targets: Targets, known: list[str], coverage: Coverage) -> None:
    for name, near in targets.unmatched(known).items():
        text = f"targets: nothing in the model is called {name!r}"
        if near:
            text += f"; near: {', '.join(near)}"
        logger.warning("%s", text)
        coverage.note(text)
