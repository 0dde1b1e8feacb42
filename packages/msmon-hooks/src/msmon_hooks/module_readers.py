"""Everything that reads modules when they are called: which of it a request asks for, made and set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msmon_hooks.activation_gradients import ActivationGradients
from msmon_hooks.call_hooks import ModuleCalls
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer
from msmon_hooks.guard import Guarded, Guards
from msmon_hooks.l2_hooks import L2Hooks
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.module_stacks import StackHooks
from msmon_hooks.module_structs import StructureHooks
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.training_forwards import TrainingForwards

Modules = Mapping[tuple[int, str], Any]
"""Stage and plain name to module."""


class ModuleReaders:
    """Activations, their gradients and L2 features; in the first step also call stacks and structure."""

    def __init__(
        self,
        request: Request,
        *,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        parts: Guards,
        forwards: TrainingForwards,
        calls: ModuleCalls,
        loss_scale: LossScale,
        owned: Registrations,
    ) -> None:
        self._request = request
        self._calls = calls
        self._names = ShortNames(enabled=request.short_names)
        self._gradients: ActivationGradients | None = None
        self.activations: ModuleHooks | None = None
        self._features: L2Hooks | None = None
        self._first_step: list[StructureHooks | StackHooks] = []
        common: dict[str, Any] = {
            "framework": forwards.framework,
            "clock": clock,
            "observer": observer,
            "coverage": coverage,
        }
        if request.activation_gradients:
            part = parts("activation gradients")
            self._gradients = ActivationGradients(**common, part=part, loss_scale=loss_scale)
        if request.activations or request.activation_gradients:
            self.activations = ModuleHooks(
                **common,
                part=parts("activations"),
                forwards=forwards,
                gradients=self._gradients,
                forward=request.activations,
            )
        if request.l2_features:
            self._features = L2Hooks(**common, part=parts("L2 features"), forwards=forwards, calls=calls)
        if request.on_structure is not None:
            part = parts("module structure")
            self._first_step.append(StructureHooks(part=part, forwards=forwards, on_structure=request.on_structure))
        if request.on_stacks is not None:
            part = parts("call stacks")
            self._first_step.append(StackHooks(part=part, forwards=forwards, on_stacks=request.on_stacks))
        for hooks in (self._gradients, self.activations, self._features, *self._first_step):
            if hooks is not None:
                owned.callback(hooks.close)

    def attach(self, modules: Modules, stages: int) -> None:
        """Hook what is asked for, for good. Called again: what has changed since."""
        for stage in range(stages):
            self._names.learn(stage, [name for at, name in modules if at == stage])
        if self.activations is not None:
            hooks = self.activations
            hooks.part.run(hooks.attach, modules, self._request.targets, self._names, self._calls)
        if self._features is not None:
            self._features.part.run(self._features.attach, modules, self._request.l2_features, self._names)

    def attach_first_step(self, modules: Modules) -> None:
        """Hook what is asked for of the first step alone; behind the rest."""
        for hooks in self._first_step:
            if isinstance(hooks, StructureHooks):
                hooks.part.run(hooks.attach, modules, self._calls)
            else:
                hooks.part.run(hooks.attach, modules, self._request.targets, self._names, self._calls)

    def step_begins(self) -> None:
        """Read what is read once a step."""
        if self._features is not None:
            self._features.part.run(self._features.step_begins)

    def step_ends(self) -> Sequence[tuple[Guarded, Callable[[], None] | None]]:
        """Forget what was read in the step. Returns what there is to hand over, each with the part that does it."""
        if self.activations is not None:
            self.activations.part.always(self.activations.step_ends)
        return [(first.part, first.part.run(first.step_ends)) for first in self._first_step]
