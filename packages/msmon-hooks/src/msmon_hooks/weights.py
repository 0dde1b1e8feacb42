"""Weights, their gradients and moments: what is read of parameters in a step."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import Any

from msmon_hooks.coverage import FROZEN
from msmon_hooks.events import Shard, TensorRef
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.moment_hooks import MomentHooks
from msmon_hooks.parameters import Weight
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations

_MISSING = {
    "grad_unreduced": "no gradient",
    "grad_reduced": "no gradient",
    "param_origin": "no optimizer step was seen",
    "param_updated": "no optimizer step was seen",
}

Entries = Iterable[tuple[Weight, Any]]
"""Weights, each with a tensor of its own: the gradient, a moment, the value."""


class WeightHooks:
    """Reads the gradients of parameters in backward, and everything else around the optimizer's step.

    Gradients are read in backward and again before the update: between the two a program may write to them in ways
    that leave no trace (`grad.data`, a view by numpy, a kernel of its own), and what counts is what is consumed.

    Args:
        recording: the request in force.
        weights: the parameters.
        source: says where their gradients are.
        updated: of `msmon_hooks.optimizer_steps.OptimizerSteps`.
        give_up: called where so many backwards reach a parameter that the step does not seem to end.
    """

    def __init__(
        self,
        recording: Recording,
        weights: Sequence[Weight],
        source: GradientSource,
        updated: Set[int],
        give_up: Callable[[], None],
    ) -> None:
        request, guards = recording.request, recording.guards
        self.weights = weights
        self.clock = recording.clock
        self._recording = recording
        self._source = source
        self._gradients = guards("weight gradients") if request.weight_gradients else None
        self._moments = guards("optimizer moments") if request.moments else None
        self._values = guards("weights") if request.weights else None
        self.each_micro_step = request.each_micro_step and source.each_micro_step
        self._unhooked: list[Weight] = []
        self._registrations: Registrations | None = None
        self._shards: dict[tuple[str, int], Shard | None] = {}
        self._written: dict[str, list[Weight]] = {}
        self._completed: int | None = None
        self._accumulations: Counter[int] = Counter()
        self._accumulated: set[int] = set()
        self._begun: set[int] = set()
        self._consumed: set[int] = set()
        self._moment_hooks: MomentHooks | None = None
        self._updated = updated
        self._give_up = give_up
        if request.each_micro_step and request.weight_gradients and not source.each_micro_step:
            text = f"monitor_mbs_grad: not with {source.engine}, which keeps no gradient of each micro-step"
            logger.warning("%s; grad_unreduced is recorded once a step", text)
            recording.coverage.note(text)

    def attach(self, registrations: Registrations) -> None:
        """Hook the parameters' gradients, and write down what is expected of this rank."""
        self._registrations = registrations
        for data_type in self._data_types():
            self._shards |= {(data_type, w.index): self._source.shard(w, data_type) for w in self.weights}
            self._written[data_type] = [w for w in self.weights if self._writes(w, data_type)]
            self._expect(data_type)
        if self._moments is not None:
            self._moment_hooks = self._moments.run(MomentHooks, self._recording, self.weights, self._source)
        if self._gradients is not None:
            self._source.attach(self._written["grad_unreduced"], _Ready(self, self._gradients), registrations)
            self._unhooked = [weight for weight in self.weights if not weight.parameter.requires_grad]

    def _data_types(self) -> list[str]:
        return [
            *(("grad_unreduced", "grad_reduced") if self._gradients is not None else ()),
            *(("param_origin", "param_updated") if self._values is not None else ()),
        ]

    def _writes(self, weight: Weight, data_type: str) -> bool:
        shard = self._shards[data_type, weight.index]
        return (shard is None or shard.local_numel > 0) and self._source.writes(weight, data_type)

    def _expect(self, data_type: str) -> None:
        for weight in self._written[data_type]:
            kind = "" if weight.parameter.requires_grad else FROZEN
            reason = kind or _MISSING[data_type]
            self._recording.coverage.expect(data_type, weight.name, reason, kind=kind, stage=weight.vpp_stage)

    @property
    def sampled(self) -> bool:
        """Whether the step in flight is recorded."""
        return self._recording.clock.sampled

    def accumulated(
        self, entries: Sequence[tuple[Weight, Any]], scale: Any, complete: bool, micro_step: int | None
    ) -> None:
        """A backward has completed gradients of parameters; see `OnReady`."""
        recording = self._recording
        if self._updated:
            entries = [entry for entry in entries if id(entry[0].parameter) not in self._updated]
            if not entries:
                return
        if micro_step is None:
            micro_step = self._running_micro_step(entries)
        if micro_step >= recording.clock.longest and not recording.clock.in_step:
            self._give_up()
            return
        if complete and not self.each_micro_step:
            self._note_completion(micro_step)
        # A later one of the step replaces it.
        if self.each_micro_step or complete or recording.clock.is_last(micro_step):
            for weight, _ in entries:
                self._accumulated.add(weight.index)
            scale = recording.loss_scale.of(entries[0][1]) if scale is None else scale
            self._read("grad_unreduced", entries, micro_step=micro_step, scale=scale)

    def _running_micro_step(self, entries: Sequence[tuple[Weight, Any]]) -> int:
        """The micro-step whose backward runs. Where no forward of the root was seen (it may be compiled with its
        hooks), every backward that reaches a parameter is one."""
        clock = self._recording.clock
        if clock.in_step:
            return clock.backward_micro_step
        self._accumulations.update(weight.index for weight, _ in entries)
        return self._accumulations[entries[-1][0].index] - 1

    def _note_completion(self, micro_step: int) -> None:
        if self._completed not in (None, micro_step):
            self._recording.coverage.note(
                "grad_unreduced: gradients are reduced after every micro-step, so the sum over micro-steps before the "
                "reduction does not exist; what the last micro-step's reduction was given is recorded"
            )
        self._completed = micro_step

    def step_begins(self, updating: Collection[int] | None = None) -> None:
        """Read what stands before the update, except gradients, which a closure may yet have to compute.

        Args:
            updating: `id` of the parameters that are about to be updated, where others are at another time of the
                step. None: all whose time was not before.
        """
        if self._unhooked:
            self._hook_unfrozen()
        if not self.sampled:
            return
        if self._moments is not None and self._moment_hooks is not None:
            self._moments.run(self._moment_hooks.read, updating)
        if self._values is not None:
            held = self._held("param_origin")
            now = [entry for entry in held if entry[0].index not in self._begun]
            if updating is not None:
                now = [entry for entry in now if id(entry[0].parameter) in updating]
            self._values.run(self._read, "param_origin", now)
            self._begun.update(weight.index for weight, _ in now)

    def gradients_ready(self, updating: Collection[int] | None = None) -> None:
        """Read the gradients that the update consumes. `updating`: see `step_begins`."""
        if self.sampled and self._gradients is not None:
            self._gradients.run(self._read_consumed, updating)

    def step_ends(self, *, skipped: bool) -> None:
        """Read what stands after the update. `skipped`: there was none."""
        if self.sampled and self._values is not None and not skipped:
            self._values.run(self._read, "param_updated", self._held("param_updated"))
        if self._moments is not None and self._moment_hooks is not None:
            self._moments.run(self._moment_hooks.step_ends, skipped=skipped)
        self._accumulations.clear()
        self._accumulated.clear()
        self._completed = None
        self._begun.clear()
        self._consumed.clear()

    @property
    def reduces(self) -> bool:
        """Whether gradients change between backward and the optimizer's step."""
        return self._source.reduces

    def current_gradients(self) -> list[tuple[Weight, Any]]:
        """The gradients that the optimizer would consume now."""
        reduced = self._source.reduced
        found = [(weight, reduced(weight)) for weight in self._written["grad_reduced"]]
        return [entry for entry in found if entry[1] is not None]

    def current_scale(self) -> Any:
        """By what `current_gradients` are multiplied, outside of the optimizer's step; None: by nothing."""
        scale = self._source.scale()
        return self._recording.loss_scale.between() if scale is None else scale

    def _read_consumed(self, updating: Collection[int] | None) -> None:
        recording = self._recording
        present = self.current_gradients()
        if updating is None:
            present = [entry for entry in present if entry[0].index not in self._consumed]
        else:
            present = [entry for entry in present if id(entry[0].parameter) in updating]
            self._consumed.update(weight.index for weight, _ in present)
        observer, clock = recording.observer, recording.clock
        scale = self._source.scale()
        scale = recording.loss_scale.at_step() if scale is None else scale
        handles = observer.measure([gradient for _, gradient in present], scale) if present else []
        ended_early = not self.each_micro_step and not clock.in_last_micro_step
        if self._source.reads_grad_at_step:
            # Those that no backward accumulated were assigned by the program. Where the accumulation ended at another
            # micro-step than announced, none was read, and what backward left is still there.
            unread = [
                (entry, handle)
                for entry, handle in zip(present, handles, strict=True)
                if ended_early or entry[0].index not in self._accumulated
            ]
            if unread:
                refs = self._refs("grad_unreduced", [entry for entry, _ in unread], clock.micro_step)
                observer.record(refs, [handle for _, handle in unread])
        elif ended_early and self._completed is None:
            recording.coverage.note(
                "grad_unreduced: missing in steps whose accumulation ended at another micro-step than grad_acc_steps "
                f"({clock.grad_acc_steps}) says"
            )
        elif self._source.unseen:
            for weight, _ in present:
                if weight.index not in self._accumulated:
                    reason = self._source.unseen
                    recording.coverage.explain("grad_unreduced", weight.name, reason, stage=weight.vpp_stage)
        if present:
            observer.record(self._refs("grad_reduced", present), handles)

    def _held(self, data_type: str) -> Iterator[tuple[Weight, Any]]:
        """The values of trained weights, as far as this rank has them."""
        for weight in self._written[data_type]:
            if weight.parameter.requires_grad and (value := self._source.value(weight)) is not None:
                yield weight, value

    def _read(self, data_type: str, entries: Entries, *, micro_step: int | None = None, scale: Any = None) -> None:
        entries, observer = list(entries), self._recording.observer
        if entries:
            handles = observer.measure([tensor for _, tensor in entries], scale)
            observer.record(self._refs(data_type, entries, micro_step), handles)

    def _refs(self, data_type: str, entries: Entries, micro_step: int | None = None) -> list[TensorRef]:
        return [self._ref(data_type, weight, tensor, micro_step) for weight, tensor in entries]

    def _ref(self, data_type: str, weight: Weight, tensor: Any, micro_step: int | None) -> TensorRef:
        recording = self._recording
        call_id = recording.clock.next_call_id()
        in_backward = data_type == "grad_unreduced"
        shape, dtype, _ = recording.framework.describe(tensor)
        return recording.refs.ref(
            data_type,
            weight.name,
            weight.vpp_stage,
            micro_step if in_backward and self.each_micro_step else None,
            call_id,
            (call_id if in_backward else weight.index,),
            shape,
            dtype,
            shard=self._shards[data_type, weight.index],
        )

    def _hook_unfrozen(self) -> None:
        """Parameters that were frozen when the hooks were set and are trained now."""
        guard, registrations = self._gradients, self._registrations
        unfrozen = [weight for weight in self._unhooked if weight.parameter.requires_grad]
        if unfrozen and guard is not None and registrations is not None:
            self._unhooked = [weight for weight in self._unhooked if weight not in unfrozen]
            guard.run(self._source.attach, unfrozen, _Ready(self, guard), registrations)


class _Ready:
    """What a gradient source calls. Hooks of parameters hold it, so it must not lead back to the parameters."""

    def __init__(self, hooks: WeightHooks, guard: Guarded) -> None:
        self._hooks = weakref.ref(hooks)
        self._clock = hooks.clock
        self._guard = guard

    @property
    def wanted(self) -> bool:
        # Of hooks that were taken off the guard is off.
        return self._clock.sampled and self._guard.enabled

    @property
    def each_micro_step(self) -> bool:
        hooks = self._hooks()
        return hooks is not None and hooks.each_micro_step

    def __call__(
        self,
        entries: Sequence[tuple[Weight, Any]],
        *,
        scale: Any = None,
        complete: bool = False,
        micro_step: int | None = None,
    ) -> None:
        hooks = self._hooks()
        if hooks is not None and hooks.sampled and entries:
            self._guard.run(hooks.accumulated, entries, scale, complete, micro_step)
