"""The answers that all ways to train with MindSpore share."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mindspore import mint

from msmon_hooks import gradients
from msmon_hooks.gradients import OnReady
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.layout import ALONE, Layout
from msmon_hooks.mindspore.executor import in_graph_mode
from msmon_hooks.mindspore.moments import Moments, parameters_of
from msmon_hooks.mindspore.optimizer_steps import gradients_in
from msmon_hooks.mindspore.parameters import named_weights
from msmon_hooks.optimizer_group import members
from msmon_hooks.parameter_state import ParameterState
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations

_NOT_GIVEN = (
    "grad_reduced: MindSpore keeps no gradients, and monitor.step() was not given those that the update consumed: "
    "monitor.step(gradients)"
)


class GradientSource(gradients.GradientSource):
    """Gradients are what the optimizer is called with; an adapter's optimizer reads them from `param.grad`.

    MindSpore keeps no gradient between two micro-steps: the program adds them up itself. So the sum so far exists
    nowhere that a hook can see; where `sums` asks for it, it is kept here, as one more copy of the gradients, from
    the first micro-step to the end of the step.

    Args:
        micro_steps: micro-steps of a step.
        sums: keep the sum over the micro-steps so far.
    """

    def __init__(self, *args: Any, micro_steps: int = 1, sums: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._micro_steps = micro_steps
        self._sums: dict[int, Any] | None = {} if sums and micro_steps > 1 else None
        self._moments = Moments(self.optimizer)
        # As `trainable_params` of the network gives them: the order of what a program updates by itself.
        trainable = _shapes(one.parameter for one in self.weights() if one.parameter.requires_grad)
        self.orders = [_shapes(parameters_of(one)) for one in members(self.optimizer)] or [trainable]
        """The parameters of each optimizer by `id`, with their shapes, in the order of the gradients that it is called
        with."""
        self._order = self.orders[0] if len(self.orders) == 1 else trainable
        self._consumed: Mapping[int, Any] | None = None
        """What the optimizer is called with, by `id` of the parameter."""

    def weights(self) -> list[Weight]:
        """Every parameter, under its plain name."""
        return named_weights(self.models)

    def trained(self) -> Iterable[Any]:
        """The parameters that the optimizer has."""
        return [parameter for one in members(self.optimizer) for parameter in parameters_of(one)]

    @property
    def hooks_parameters(self) -> bool:
        """Whether hooks of parameters show the gradient that is complete on this rank.

        A compiled graph would have to compile them.
        """
        return not in_graph_mode() and (self._micro_steps == 1 or self._sums is not None)

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` whenever a gradient of a parameter was computed."""
        if self.hooks_parameters:
            for weight in weights:
                if weight.parameter.requires_grad:
                    hook = _Computed(self.guard, weight, on_ready, self._sums)
                    registrations.add(weight.parameter.register_hook(hook))

    def step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], updating: Collection[int] | None) -> None:
        """An optimizer's step begins, with gradients in the order of its parameters, unless it reads them from
        these."""
        self._moments.step_begins(updating)
        gradients = gradients_in(args, kwargs)
        order = self._order if updating is None else updating
        if gradients is not None and len(gradients) != len(order):
            self.coverage.note(
                f"weight gradients: there are {len(order)} parameters, and {len(gradients)} gradients for "
                "the update; which belongs to which is unknown"
            )
            gradients = None
        self._consumed = None if gradients is None else dict(zip(order, gradients, strict=True))

    def reduced(self, weight: Weight) -> Any:
        """The gradient that the optimizer consumes, or None where there is none."""
        if self._consumed is not None:
            return self._consumed.get(id(weight.parameter))
        main_grad = getattr(weight.parameter, "main_grad", None) if self.main_grad else None
        return main_grad if main_grad is not None else getattr(weight.parameter, "grad", None)

    def layout(self, weight: Weight) -> Layout | None:
        """One process shares nothing."""
        return ALONE

    def moments(self, weight: Weight) -> ParameterState:
        """What the optimizer keeps of the parameter now, as far as it was updated."""
        return self._moments.of(weight.parameter)

    def step_ends(self, *, skipped: bool) -> None:
        """The gradients of the step are let go."""
        self._moments.step_ends(skipped=skipped)
        if self.optimizer is None and self._consumed is None:
            self.coverage.note(_NOT_GIVEN, ("grad_reduced",))
        self._consumed = None
        if self._sums is not None:
            self._sums.clear()


def _shapes(parameters: Iterable[Any]) -> dict[int, tuple[int, ...]]:
    return {id(parameter): tuple(parameter.shape) for parameter in parameters}


class _Computed(Hook):
    """Sits on a parameter; a backward hands it the gradient over all uses of the parameter in that backward."""

    def __init__(self, guard: Guarded, weight: Weight, on_ready: OnReady, sums: dict[int, Any] | None) -> None:
        super().__init__(guard)
        # MindSpore holds hooks where Python's garbage collector cannot look: this one must not lead to the parameter.
        self.weight = weakref.ref(weight)
        self.on_ready = on_ready
        self.sums = sums

    def __call__(self, gradient: Any) -> Any:
        super().__call__(gradient)
        return gradient

    def fire(self, gradient: Any) -> None:
        weight = self.weight()
        if weight is not None and gradient is not None and self.on_ready.wanted:
            total = gradient if self.sums is None else self._sum(weight.index, gradient, self.sums)
            self.on_ready([(weight, total)])

    @staticmethod
    def _sum(index: int, gradient: Any, sums: dict[int, Any]) -> Any:
        before = sums.get(index)
        total = sums[index] = gradient if before is None else mint.add(before, gradient)
        return total
