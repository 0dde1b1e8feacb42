"""Several processes: gradients are read before `nn.DistributedGradReducer`, or the script itself, reduces them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from mindspore import communication, context, nn

from msmon_hooks.call_hooks import BeforeCall
from msmon_hooks.gradients import OnReady
from msmon_hooks.layout import Layout
from msmon_hooks.mindspore.call_hooks import CallHooks
from msmon_hooks.mindspore.grads.source import GradientSource
from msmon_hooks.mindspore.optimizer_steps import gradients_in
from msmon_hooks.mindspore.process_groups import is_distributed
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations

_AMBIGUOUS = (
    "grad_unreduced: nn.DistributedGradReducer is called with gradients that may be those of several optimizers, whose "
    "parameters have the same shapes"
)


class DataParallelGradients(GradientSource):
    """A hook of the parameter sees the gradient of one micro-step before anything is reduced. What a script has
    added up over several is seen where `nn.DistributedGradReducer` is called with it."""

    engine = "data_parallel"

    @classmethod
    def matches(cls, models: Sequence[Any], optimizer: Any) -> bool:
        """Whether several processes know of each other."""
        return is_distributed()

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` when a gradient was computed, or, where a step has several micro-steps, when their sum is
        about to be reduced."""
        super().attach(weights, on_ready, registrations)
        if self.hooks_parameters:
            return
        call_hooks = CallHooks()
        registrations.callback(call_hooks.close)
        call_hooks.add_class(nn.DistributedGradReducer, _Reduces(self, weights, on_ready))

    def layout(self, weight: Weight) -> Layout | None:
        """What the script has given, or else what it has told MindSpore's context: then all processes are replicas."""
        if context.get_auto_parallel_context("parallel_mode") != "data_parallel":
            return self.given_layout(weight)
        ranks = {"data": list(range(communication.get_group_size()))}
        mean = context.get_auto_parallel_context("gradients_mean")
        return Layout(equal_over=ranks, summed_over=ranks, divided_by=len(ranks["data"]) if mean else None)

    def reduces_now(self, weights: Sequence[Weight], gradients: Sequence[Any], on_ready: OnReady) -> None:
        """A reducer is called with gradients in the order of an optimizer's parameters: of the one that they fit, if
        that is one alone."""
        fitting = [order for order in self.orders if len(order) == len(gradients)]
        if len(fitting) > 1:
            shapes = [tuple(gradient.shape) for gradient in gradients]
            fitting = [order for order in fitting if [*order.values()] == shapes]
        if len(fitting) == 1:
            given = dict(zip(fitting[0], gradients, strict=True))
            entries = [(weight, given[key]) for weight in weights if (key := id(weight.parameter)) in given]
            on_ready(entries, complete=True)
        elif fitting:
            self.coverage.note(_AMBIGUOUS, ("grad_unreduced",))


class _Reduces(BeforeCall):
    """Kept by the class of the reducers, so it leads to no network."""

    def __init__(self, source: DataParallelGradients, weights: Sequence[Weight], on_ready: OnReady) -> None:
        super().__init__(source.guard)
        self.source = weakref.ref(source)
        self.weights = [weakref.ref(weight) for weight in weights]
        self.on_ready = on_ready

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        source, gradients = self.source(), gradients_in(args, kwargs)
        if source is not None and gradients is not None and self.on_ready.wanted:
            weights = [weight for one in self.weights if (weight := one()) is not None]
            source.reduces_now(weights, gradients, self.on_ready)
