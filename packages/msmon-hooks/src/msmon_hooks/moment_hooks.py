"""What an optimizer keeps of parameters, read as it stands before the update, or after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msmon_hooks.coverage import FROZEN, NOT_KEPT
from msmon_hooks.events import Shard, TensorRef
from msmon_hooks.gradients import GradientSource
from msmon_hooks.parameter_state import MOMENTS, STATE, ParameterState, StateLayout
from msmon_hooks.parameters import Weight
from msmon_hooks.recording import Recording


class MomentHooks:
    """Rows of `exp_avg`, `exp_avg_sq` and `state`, and the reason for each moment that a parameter does not have."""

    def __init__(self, recording: Recording, weights: Sequence[Weight], source: GradientSource) -> None:
        self._recording = recording
        self._source = source
        self._shards: dict[tuple[str, str, int], Shard | None] = {}
        self._updated = False
        self._begun: set[int] = set()
        self._consumed: set[int] = set()
        """Parameters of which a gradient was seen at an update; a program may clear it before the step has ended."""
        self._explained: dict[tuple[str, int], StateLayout] = {}
        self._unread: dict[tuple[str, str, int], str] = {}
        self._weights = [weight for weight in weights if self._expect(weight)]

    def _expect(self, weight: Weight) -> bool:
        """Whether this rank writes rows of the parameter's moments."""
        written = [moment for moment in MOMENTS if self._writes(weight, moment)]
        for moment in written:
            kind = "" if weight.parameter.requires_grad else FROZEN
            reason = kind or ParameterState().missing(moment, updated=False)
            self._recording.coverage.expect(moment, weight.name, reason, kind=kind, stage=weight.vpp_stage)
            # Hooks that were there before may have said otherwise.
            self._recording.coverage.lose(moment, weight.name, None, stage=weight.vpp_stage)
        return bool(written)

    def _writes(self, weight: Weight, moment: str) -> bool:
        shard = self._source.shard(weight, moment)
        return (shard is None or shard.local_numel > 0) and self._source.writes(weight, moment)

    def read(self, updating: Collection[int] | None, *, updated: bool = False) -> None:
        """Read what stands before the update, or after it (`updated`), whichever was asked for.

        `updating`: see `msmon_hooks.weights.WeightHooks.step_begins`.
        """
        if updated is not self._recording.request.moments_after_update:
            return
        found: dict[str, list[tuple[Weight, str, Any]]] = {data_type: [] for data_type in (*MOMENTS, STATE)}
        for weight in self._weights:
            if weight.index in self._begun or not (updating is None or id(weight.parameter) in updating):
                continue
            self._begun.add(weight.index)
            self._note_gradient(weight)
            state = self._source.moments(weight)
            for name, tensor in state.tensors.items():
                found[name if name in MOMENTS else STATE].append((weight, name, tensor))
            for name in state.packed:
                self._read_packed(weight, name, state)
            self._explain(weight, state)
        for entries in found.values():
            if entries:
                self._record(entries, self._recording.observer.measure([tensor for _, _, tensor in entries]))

    def step_ends(self, *, skipped: bool) -> None:
        """Once an update was made there is a state, or a reason that there is none."""
        if self._recording.clock.sampled:
            self.read(None, updated=True)
        self._begun.clear()
        if self._updated or skipped:
            return
        self._updated = True
        for weight in self._weights:
            self._explain(weight, self._source.moments(weight))

    def _read_packed(self, weight: Weight, name: str, state: ParameterState) -> None:
        """At once, and alone: the values take memory of their own, and what fails costs one row."""
        data_type, full = key = _row(weight, name)
        place = *key, weight.vpp_stage
        try:
            tensor = state.get(name)
        except ValueError as error:
            if self._unread.get(place) != str(error):
                self._unread[place] = str(error)
                self._recording.coverage.lose(data_type, full, str(error), stage=weight.vpp_stage)
            return
        if self._unread.pop(place, None) is not None:
            self._recording.coverage.lose(data_type, full, None, stage=weight.vpp_stage)
        self._record([(weight, name, tensor)], self._recording.observer.measure([tensor]))

    def _explain(self, weight: Weight, state: ParameterState) -> None:
        """Say why a moment is not there: once, and again when the state has changed."""
        layout = state.layout
        for moment in MOMENTS:
            known = self._explained.get((moment, weight.index))
            if moment in state.tensors or moment in state.packed:
                if known is not None:
                    del self._explained[moment, weight.index]
                    self._recording.coverage.lose(moment, weight.name, None, stage=weight.vpp_stage)
            elif known is not layout and (layout.keys or (self._updated and weight.parameter.requires_grad)):
                self._explained[moment, weight.index] = layout
                reason = state.missing(moment, updated=True)
                self._note_gradient(weight)
                kept_nothing = bool(layout.places) and weight.index in self._consumed
                kind = NOT_KEPT if layout.keys or kept_nothing else ""
                self._recording.coverage.lose(moment, weight.name, reason, kind=kind, stage=weight.vpp_stage)

    def _note_gradient(self, weight: Weight) -> None:
        if weight.index not in self._consumed and self._source.reduced(weight) is not None:
            self._consumed.add(weight.index)

    def _record(self, entries: Sequence[tuple[Weight, str, Any]], handles: Sequence[int]) -> None:
        self._recording.observer.record([self._ref(*entry) for entry in entries], handles)

    def _ref(self, weight: Weight, name: str, tensor: Any) -> TensorRef:
        data_type, full = key = _row(weight, name)
        place = *key, weight.vpp_stage
        if place not in self._shards:
            moment = name in MOMENTS
            shard = self._source.shard(weight, name) if moment else self._source.state_shard(weight, tensor)
            self._shards[place] = shard
        shape, dtype, _ = self._recording.framework.describe(tensor)
        return self._recording.refs.ref(
            data_type,
            full,
            weight.vpp_stage,
            None,
            self._recording.clock.next_call_id(),
            (weight.index,),
            shape,
            dtype,
            shard=self._shards[place],
        )


def _row(weight: Weight, name: str) -> tuple[str, str]:
    """Data type and name of a tensor's row."""
    return (name, weight.name) if name in MOMENTS else (STATE, f"{weight.name}.{name}")
