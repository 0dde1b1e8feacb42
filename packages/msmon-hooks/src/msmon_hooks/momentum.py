"""What gradients and moments say together: agreement of directions, Adam's update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msmon_hooks.adam import AdamSettings
from msmon_hooks.coverage import CAPTURED, FROZEN, NOT_KEPT
from msmon_hooks.data_types import ADAM_HISTOGRAM
from msmon_hooks.events import TensorRef
from msmon_hooks.gradients import GradientSource
from msmon_hooks.parameter_state import MOMENTS, NotKeptError, ParameterState
from msmon_hooks.parameters import Weight
from msmon_hooks.recording import Recording

DIRECTION = "other"
"""The data type of rows of `mg_direction`."""


class MomentumHooks:
    """Has numbers computed from the moments as they stand just before an update.

    Args:
        sign_agreement: as `msmon_hooks.Request` has it, but given a momentum of None before the first update;
            `ValueError` where there is none. None: not asked for.
        settings: `settings(optimizer)(weight)`: how the moments were accumulated, or None.
    """

    def __init__(
        self,
        recording: Recording,
        weights: Sequence[Weight],
        source: GradientSource,
        *,
        sign_agreement: Callable[[Any, Any], Any] | None,
        settings: Callable[[Any], Callable[[Weight], AdamSettings | None]],
    ) -> None:
        self.weights = list(weights)
        self._recording = recording
        self._source = source
        self._directions = recording.guards("agreement of gradient and momentum")
        self._histograms = recording.guards("histograms of Adam's update")
        self._sign_agreement = sign_agreement
        self._adam_histograms = recording.request.adam_histograms
        self._settings = settings
        self._updates = 0
        self._consumed: set[int] = set()
        self._begun: set[int] = set()
        """Of those parameters that are updated each at a time of their own."""
        self._updated: set[int] = set()
        self._missing: dict[tuple[str, int], str] = {}
        for weight in self.weights:
            trains = weight.parameter.requires_grad
            for wanted, data_type, reason, kind in (
                (sign_agreement, DIRECTION, "no gradient", ""),
                (self._adam_histograms, ADAM_HISTOGRAM, "the optimizer has no moments of Adam's kind", NOT_KEPT),
            ):
                if wanted is not None:
                    why, kind = (reason, kind) if trains else (FROZEN, FROZEN)
                    recording.coverage.expect(data_type, weight.name, why, kind=kind, stage=weight.vpp_stage)

    def step_begins(self, updating: Collection[int] | None) -> None:
        """The moments are those of the last update. `updating`: see `msmon_hooks.weights.WeightHooks.step_begins`."""
        if self._adam_histograms is not None and self._reads(ADAM_HISTOGRAM):
            self._histograms.run(self._read_histograms, self._adam_histograms, updating)

    def gradients_ready(self, updating: Collection[int] | None) -> None:
        """The gradients are those of the coming update."""
        if self._sign_agreement is not None and self._reads(DIRECTION):
            self._directions.run(self._read_directions, self._sign_agreement, updating)

    def step_ends(self) -> None:
        """An update was made."""
        self._updates += 1
        self._updated |= self._consumed
        self._consumed.clear()
        self._begun.clear()

    def _reads(self, data_type: str) -> bool:
        recording = self._recording
        if recording.clock.sampled and recording.framework.is_capturing():
            for weight in self.weights:
                if weight.parameter.requires_grad:
                    recording.coverage.explain(data_type, weight.name, CAPTURED, stage=weight.vpp_stage)
            return False
        return recording.clock.sampled

    def _read_directions(self, sign_agreement: Callable[[Any, Any], Any], updating: Collection[int] | None) -> None:
        refs, numbers = [], []
        states = [(weight, self._source.moments(weight)) for weight in self.weights]
        kept = any(state.momentum is not None for _, state in states)
        for weight, state in states:
            if self._is_over(weight, updating):
                continue
            gradient = self._source.reduced(weight) if weight.parameter.requires_grad else None
            if gradient is None:
                continue
            self._consumed.add(weight.index)
            if updating is not None:
                self._begun.add(weight.index)
            try:
                number = sign_agreement(gradient, self._momentum(weight, state, kept=kept))
            except Exception as error:  # of this parameter; the next one may be of another kind
                self._miss(DIRECTION, weight, reason_of(error), NOT_KEPT if isinstance(error, NotKeptError) else "")
                continue
            self._miss(DIRECTION, weight, None)
            refs.append(self._ref(DIRECTION, weight, self._recording.framework.dtype(gradient)))
            numbers.append(number)
        self._recording.observer.record(refs, self._recording.observer.measure(numbers) if numbers else [])

    def _momentum(self, weight: Weight, state: ParameterState, *, kept: bool) -> Any:
        """What the gradient will be added to; None before the first update.

        Args:
            kept: whether there is a momentum of any parameter.
        """
        if state.momentum is not None:
            return state.get(state.momentum)
        keys = state.layout.keys
        # Some keep things of other kinds from the beginning, but count steps only once there are some.
        first = not self._updates and "step" not in keys
        # Once an optimizer has a momentum of some parameters, another one without a state was not updated yet.
        if first or (not keys and kept and weight.index not in self._updated):
            return None
        raise NotKeptError(state.missing("momentum", updated=True))

    def _is_over(self, weight: Weight, updating: Collection[int] | None) -> bool:
        """Whether the parameter is not updated now, or was before in this step."""
        return weight.index in self._begun if updating is None else id(weight.parameter) not in updating

    def _read_histograms(self, adam_histograms: Callable[..., Any], updating: Collection[int] | None) -> None:
        settings_of = self._settings(self._source.optimizer)
        refs, handles = [], []
        for weight in self.weights:
            if self._is_over(weight, updating):
                continue
            state = self._source.moments(weight)
            settings = settings_of(weight)
            if settings is None or not all(name in state.tensors or name in state.packed for name in MOMENTS):
                continue
            try:
                first, second = (state.get(name) for name in MOMENTS)
                shapes = [self._recording.framework.shape(moment) for moment in (first, second)]
                if shapes[0] != shapes[1]:
                    raise ValueError(f"moments {tuple(shapes[0])} and {tuple(shapes[1])} differ in shape")
                counts = adam_histograms(first, second, step=settings.step, betas=settings.betas, eps=settings.eps)
            except Exception as error:  # of this parameter
                self._miss(ADAM_HISTOGRAM, weight, reason_of(error))
                continue
            self._miss(ADAM_HISTOGRAM, weight, None)
            refs.append(self._ref(ADAM_HISTOGRAM, weight, self._recording.framework.dtype(first)))
            handles.append(self._recording.observer.put(counts))
        self._recording.observer.record(refs, handles)

    def _miss(self, data_type: str, weight: Weight, reason: str | None, kind: str = "") -> None:
        """There is no row now, or there is one again (None)."""
        key = data_type, weight.index
        if self._missing.get(key) != reason:
            if reason is None:
                del self._missing[key]
            else:
                self._missing[key] = reason
            self._recording.coverage.lose(data_type, weight.name, reason, kind=kind, stage=weight.vpp_stage)

    def _ref(self, data_type: str, weight: Weight, dtype: str) -> TensorRef:
        number = self._recording.clock.next_call_id()
        order = (weight.index,)
        return self._recording.refs.ref(data_type, weight.name, weight.vpp_stage, None, number, order, (), dtype)


def reason_of(error: Exception) -> str:
    """An exception in one short line; frameworks give whole pages.

    Example:
        >>> reason_of(ValueError("shapes differ")), reason_of(RuntimeError("no kernel\\nregistered: ..."))
        ('shapes differ', 'RuntimeError: no kernel')
    """
    line = (str(error).strip().splitlines() or [""])[0][:160]
    return line if isinstance(error, ValueError) else f"{type(error).__name__}: {line}"
