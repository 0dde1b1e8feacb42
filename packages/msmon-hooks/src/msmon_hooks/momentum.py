"""What gradients and moments say together: agreement of directions, Adam's update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msmon_hooks.adam import AdamSettings
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.data_types import ADAM_HISTOGRAM
from msmon_hooks.events import Observer, TensorRef
from msmon_hooks.framework import Framework
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guarded
from msmon_hooks.parameters import Weight
from msmon_hooks.ref_cache import RefCache

DIRECTION = "other"
"""The data type of rows of `mg_direction`."""


class MomentumHooks:
    """Has numbers computed from the moments as they stand just before an update.

    Args:
        sign_agreement: as `msmon_hooks.Request` has it, but given a momentum of None before the first update;
            `ValueError` where there is none. None: not asked for.
        adam_histograms: see `msmon_hooks.Request`; None: not asked for.
        settings: `settings(optimizer)(weight)`: how the moments were accumulated, or None.
    """

    def __init__(
        self,
        *,
        framework: Framework,
        weights: Sequence[Weight],
        source: GradientSource,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        directions: Guarded,
        histograms: Guarded,
        sign_agreement: Callable[[Any, Any], Any] | None,
        adam_histograms: Callable[..., Any] | None,
        settings: Callable[[Any], Callable[[Weight], AdamSettings | None]],
    ) -> None:
        self.weights = list(weights)
        self._framework = framework
        self._source = source
        self._clock = clock
        self._observer = observer
        self._coverage = coverage
        self._directions = directions
        self._histograms = histograms
        self._sign_agreement = sign_agreement
        self._adam_histograms = adam_histograms
        self._settings = settings
        self._refs = RefCache()
        self._updates = 0
        for weight in self.weights:
            reason = "no gradient" if weight.parameter.requires_grad else "frozen"
            if sign_agreement is not None:
                coverage.expect(DIRECTION, weight.name, reason, stage=weight.vpp_stage)
            if adam_histograms is not None:
                unlike = "the optimizer has no moments of Adam's kind"
                coverage.expect(ADAM_HISTOGRAM, weight.name, unlike, stage=weight.vpp_stage)

    def step_begins(self) -> None:
        """The moments are those of the last update."""
        if self._clock.sampled and self._adam_histograms is not None:
            self._histograms.run(self._read_histograms, self._adam_histograms)

    def gradients_ready(self) -> None:
        """The gradients are those of the coming update."""
        if self._clock.sampled and self._sign_agreement is not None:
            self._directions.run(self._read_directions, self._sign_agreement)

    def step_ends(self) -> None:
        """An update was made."""
        self._updates += 1

    def _read_directions(self, sign_agreement: Callable[[Any, Any], Any]) -> None:
        refs, numbers = [], []
        entries = [(weight, self._source.moments(weight).get("exp_avg")) for weight in self.weights]
        if self._updates and all(momentum is None for _, momentum in entries):
            self._coverage.note(f"mg_direction: {type(self._source.optimizer).__name__} keeps no momentum")
            return
        for weight, momentum in entries:
            gradient = self._source.reduced(weight) if weight.parameter.requires_grad else None
            if gradient is None:
                continue
            try:
                number = sign_agreement(gradient, momentum)
            except ValueError as error:
                self._coverage.explain(DIRECTION, weight.name, str(error), stage=weight.vpp_stage)
                continue
            refs.append(self._ref(DIRECTION, weight, self._framework.dtype(gradient)))
            numbers.append(number)
        self._observer.record(refs, self._observer.measure(numbers) if numbers else [])

    def _read_histograms(self, adam_histograms: Callable[..., Any]) -> None:
        settings_of = self._settings(self._source.optimizer)
        refs, handles = [], []
        for weight in self.weights:
            moments = self._source.moments(weight)
            settings = settings_of(weight)
            if len(moments) < 2 or settings is None:
                continue
            counts = adam_histograms(
                moments["exp_avg"], moments["exp_avg_sq"], step=settings.step, betas=settings.betas, eps=settings.eps
            )
            refs.append(self._ref(ADAM_HISTOGRAM, weight, self._framework.dtype(moments["exp_avg"])))
            handles.append(self._observer.put(counts))
        self._observer.record(refs, handles)

    def _ref(self, data_type: str, weight: Weight, dtype: str) -> TensorRef:
        number = self._clock.next_call_id()
        order = (weight.index,)
        return self._refs.ref(data_type, weight.name, weight.vpp_stage, None, number, order, (), dtype)
