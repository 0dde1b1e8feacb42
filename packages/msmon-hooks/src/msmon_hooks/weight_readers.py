"""Everything that reads parameters: which of it a request asks for, made and set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from msmon_hooks.adam import AdamSettings
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer
from msmon_hooks.framework import Framework
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guards
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.momentum import DIRECTION, MomentumHooks
from msmon_hooks.parameters import Weight, split_by_request
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import Request
from msmon_hooks.short_names import ShortNames
from msmon_hooks.weights import WeightHooks, WeightParts

Agreement = Callable[[Any, Any], Any]


def wanted_types(request: Request) -> list[str]:
    """The data types of parameters that a request asks for.

    Example:
        >>> wanted_types(Request(weights=True, sign_agreement=lambda gradient, momentum: 1.0))
        ['param_origin', 'param_updated', 'other']
    """
    return [
        *(("grad_unreduced", "grad_reduced") if request.weight_gradients else ()),
        *(("exp_avg", "exp_avg_sq") if request.moments else ()),
        *(("param_origin", "param_updated") if request.weights else ()),
        *((DIRECTION,) if request.sign_agreement is not None else ()),
    ]


def shortened(weights: Sequence[Weight], names: ShortNames) -> list[Weight]:
    """The weights under the names that rows carry; the full name becomes an alias."""
    found = []
    for weight in weights:
        short = names(weight.vpp_stage, weight.name)
        same = short == weight.name
        found.append(weight if same else evolve(weight, name=short, aliases=(weight.name, *weight.aliases)))
    return found


class WeightReaders:
    """Gradients, moments and weights; agreement of gradient and momentum; Adam's update.

    Args:
        weights: all parameters, also those that are not asked for.
        names: what rows call them.
        agreement: makes what `Request.sign_agreement` computes of what a framework's gradients and moments are.
        settings: see `MomentumHooks`.
        registrations: take the hooks of parameters.
    """

    def __init__(
        self,
        request: Request,
        *,
        framework: Framework,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        parts: Guards,
        source: GradientSource,
        weights: Sequence[Weight],
        names: ShortNames,
        loss_scale: LossScale,
        agreement: Callable[[Agreement], Agreement],
        settings: Callable[[Any], Callable[[Weight], AdamSettings | None]],
        registrations: Registrations,
    ) -> None:
        self.hooks: WeightHooks | None = None
        """Reads gradients, moments and weights; None where none of these is asked for."""
        self._part = parts("parameters")
        self._momentum: MomentumHooks | None = None
        wanted = wanted_types(request)
        if not wanted and request.adam_histograms is None:
            return
        taken, left_out = split_by_request(weights, request.targets, source.trains)
        for weight, reason in left_out:
            for data_type in wanted:
                name = names(weight.vpp_stage, weight.name)
                coverage.explain(data_type, name, reason, stage=weight.vpp_stage)
        common: dict[str, Any] = {
            "framework": framework,
            "weights": shortened(taken, names),
            "source": source,
            "clock": clock,
            "observer": observer,
            "coverage": coverage,
        }
        if request.weight_gradients or request.moments or request.weights:
            hooks = WeightHooks(
                **common,
                parts=WeightParts(
                    gradients=parts("weight gradients") if request.weight_gradients else None,
                    moments=parts("optimizer moments") if request.moments else None,
                    weights=parts("weights") if request.weights else None,
                ),
                each_micro_step=request.each_micro_step,
                loss_scale=loss_scale,
            )
            hooks.attach(registrations)
            self.hooks = hooks
        if request.sign_agreement is not None or request.adam_histograms is not None:
            self._momentum = MomentumHooks(
                **common,
                directions=parts("agreement of gradient and momentum"),
                histograms=parts("histograms of Adam's update"),
                sign_agreement=None if request.sign_agreement is None else agreement(request.sign_agreement),
                adam_histograms=request.adam_histograms,
                settings=settings,
            )

    def step_begins(self) -> None:
        """Read what stands before the update."""
        for hooks in (self.hooks, self._momentum):
            if hooks is not None:
                self._part.run(hooks.step_begins)

    def gradients_ready(self) -> None:
        """Read the gradients that the update consumes."""
        for hooks in (self.hooks, self._momentum):
            if hooks is not None:
                hooks.gradients_ready()

    def step_ends(self, *, skipped: bool) -> None:
        """Read what stands after the update. What failed before is still cleaned up, or it would keep tensors alive."""
        if self.hooks is not None:
            self._part.always(self.hooks.step_ends, skipped=skipped)
        if self._momentum is not None and not skipped:
            self._momentum.step_ends()
