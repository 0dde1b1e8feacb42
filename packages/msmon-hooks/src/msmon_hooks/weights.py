"""Weights, their gradients and moments: what is read of parameters in a step."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer, Shard, TensorRef
from msmon_hooks.framework import Framework
from msmon_hooks.gradients import GradientSource
from msmon_hooks.guard import Guarded, logger
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.measured import Measured
from msmon_hooks.moment_hooks import MomentHooks
from msmon_hooks.parameters import Weight
from msmon_hooks.ref_cache import RefCache
from msmon_hooks.registrations import Registrations

_MISSING = {
    "grad_unreduced": "no gradient",
    "grad_reduced": "no gradient",
    "param_origin": "no optimizer step was seen",
    "param_updated": "no optimizer step was seen",
}


@frozen(kw_only=True)
class WeightParts:
    """The parts that read parameters; each fails alone. None: not asked for."""

    gradients: Guarded | None
    moments: Guarded | None
    weights: Guarded | None


class WeightHooks:
    """Reads the gradients of parameters in backward, and everything else around the optimizer's step."""

    def __init__(
        self,
        *,
        framework: Framework,
        weights: Sequence[Weight],
        source: GradientSource,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        parts: WeightParts,
        each_micro_step: bool,
        loss_scale: LossScale,
    ) -> None:
        self.weights = weights
        self._framework = framework
        self._source = source
        self._clock = clock
        self._observer = observer
        self._coverage = coverage
        self._parts = parts
        self.each_micro_step = each_micro_step and source.each_micro_step
        self._measured = Measured(framework)
        self._unhooked: list[Weight] = []
        self._registrations: Registrations | None = None
        self._shards: dict[tuple[str, int], Shard | None] = {}
        self._written: dict[str, list[Weight]] = {}
        self._completed: tuple[int, int] | None = None
        self._loss_scale = loss_scale
        self._refs = RefCache()
        self._accumulations: Counter[int] = Counter()
        self._unreduced: set[int] = set()
        self._moments: MomentHooks | None = None
        if each_micro_step and not source.each_micro_step and parts.gradients is not None:
            text = f"monitor_mbs_grad: not with {source.engine}, which keeps no gradient of each micro-step"
            logger.warning("%s; grad_unreduced is recorded once a step", text)
            coverage.note(text)

    def attach(self, registrations: Registrations) -> None:
        """Hook the parameters' gradients, and write down what is expected of this rank."""
        self._registrations = registrations
        for data_type in self._data_types():
            self._shards |= {(data_type, w.index): self._source.shard(w, data_type) for w in self.weights}
            self._written[data_type] = [w for w in self.weights if self._writes(w, data_type)]
            self._expect(data_type)
        if self._parts.moments is not None:
            self._moments = self._parts.moments.run(self._make_moments)
        if self._parts.gradients is not None:
            self._source.attach(self._written["grad_unreduced"], _Ready(self), registrations)
            self._unhooked = [weight for weight in self.weights if not weight.parameter.requires_grad]

    def _data_types(self) -> list[str]:
        parts = self._parts
        return [
            *(("grad_unreduced", "grad_reduced") if parts.gradients is not None else ()),
            *(("param_origin", "param_updated") if parts.weights is not None else ()),
        ]

    def _make_moments(self) -> MomentHooks:
        return MomentHooks(
            framework=self._framework,
            weights=self.weights,
            source=self._source,
            clock=self._clock,
            observer=self._observer,
            coverage=self._coverage,
        )

    def _writes(self, weight: Weight, data_type: str) -> bool:
        shard = self._shards[data_type, weight.index]
        return (shard is None or shard.local_numel > 0) and self._source.writes(weight, data_type)

    def _expect(self, data_type: str) -> None:
        for weight in self._written[data_type]:
            reason = _MISSING[data_type] if weight.parameter.requires_grad else "frozen"
            self._coverage.expect(data_type, weight.name, reason, stage=weight.vpp_stage)

    @property
    def wants_gradients(self) -> bool:
        """Whether gradients of the step in flight are read."""
        part = self._parts.gradients
        return part is not None and self._clock.sampled and part.enabled

    def gradients_ready_in_backward(
        self, entries: Sequence[tuple[Weight, Any]], micro_step: int | None, scale: Any, complete: bool
    ) -> None:
        """A backward has completed gradients of parameters; see `OnReady`."""
        if self._parts.gradients is not None and self.wants_gradients and entries:
            self._parts.gradients.run(self._gradient_ready, entries, micro_step, scale, complete)

    def _gradient_ready(
        self, entries: Sequence[tuple[Weight, Any]], micro_step: int | None, scale: Any, complete: bool
    ) -> None:
        if micro_step is None:
            micro_step = [self._running_micro_step(weight) for weight, _ in entries][-1]
        if complete and not self.each_micro_step:
            self._note_completion(micro_step)
        if self.each_micro_step or complete or micro_step == self._clock.grad_acc_steps - 1:
            # Where the gradient is reduced later, what is read here must not stand for the reduced one.
            reuse = not self._source.reduces
            scale = self._loss_scale.of(entries[0][1]) if scale is None else scale
            self._unreduced.update(weight.index for weight, _ in entries)
            self._read("grad_unreduced", *_columns(entries), reuse=reuse, micro_step=micro_step, scale=scale)

    def _running_micro_step(self, weight: Weight) -> int:
        """The micro-step whose backward runs. Where no forward of the root was seen (it may be compiled with its
        hooks), every backward that reaches the parameter is one."""
        if self._clock.in_step:
            return self._clock.backward_micro_step
        self._accumulations[weight.index] += 1
        return self._accumulations[weight.index] - 1

    def _note_completion(self, micro_step: int) -> None:
        now = (self._clock.step, micro_step)
        if self._completed is not None and self._completed[0] == now[0] and self._completed[1] != micro_step:
            self._coverage.note(
                "grad_unreduced: gradients are reduced after every micro-step, so the sum over micro-steps before the "
                "reduction does not exist; what the last micro-step's reduction was given is recorded"
            )
        self._completed = now

    def step_begins(self) -> None:
        """Read what stands before the update, except gradients, which a closure may yet have to compute."""
        if self._unhooked:
            self._hook_unfrozen()
        if not self._clock.sampled:
            return
        if self._parts.moments is not None and self._moments is not None:
            self._parts.moments.run(self._moments.step_begins)
        if self._parts.weights is not None:
            self._parts.weights.run(self._read_weights, "param_origin")

    def gradients_ready(self) -> None:
        """Read the gradients that the update consumes."""
        if self._clock.sampled and self._parts.gradients is not None:
            self._parts.gradients.run(self._read_gradients)

    def step_ends(self, *, skipped: bool = False) -> None:
        """Read what stands after the update. `skipped`: there was none."""
        if self._clock.sampled and self._parts.weights is not None and not skipped:
            self._parts.weights.run(self._read_weights, "param_updated")
        if self._parts.moments is not None and self._moments is not None:
            self._parts.moments.run(self._moments.step_ends, skipped=skipped)
        self._measured.clear()
        self._accumulations.clear()
        self._unreduced.clear()

    @property
    def reduces(self) -> bool:
        """Whether gradients change between backward and the optimizer's step."""
        return self._source.reduces

    def current_gradients(self) -> list[tuple[Weight, Any]]:
        """The gradients that the optimizer would consume now."""
        found = ((weight, self._source.reduced(weight)) for weight in self._written["grad_reduced"])
        return [(weight, gradient) for weight, gradient in found if gradient is not None]

    def current_scale(self) -> Any:
        """By what `current_gradients` are multiplied, outside of the optimizer's step; None: by nothing."""
        scale = self._source.scale()
        return self._loss_scale.between() if scale is None else scale

    def _read_gradients(self) -> None:
        present = self.current_gradients()
        weights, gradients = _columns(present)
        scale = self._source.scale()
        scale = self._loss_scale.at_step() if scale is None else scale
        if not self.each_micro_step and not self._clock.in_last_micro_step:
            self._read_early(weights, gradients, scale)
        elif self._source.reads_grad_at_step:
            # Gradients that no backward accumulated: the program assigned them.
            rest = [entry for entry in present if entry[0].index not in self._unreduced]
            micro_step = self._clock.micro_step
            self._read("grad_unreduced", *_columns(rest), micro_step=micro_step, scale=scale)
        self._read("grad_reduced", weights, gradients, scale=scale)

    def _read_early(self, weights: list[Weight], gradients: list[Any], scale: Any) -> None:
        """The accumulation ended at another micro-step than announced."""
        if self._source.reads_grad_at_step:
            # What backward left is still there.
            self._read("grad_unreduced", weights, gradients, scale=scale)
        elif self._completed is None or self._completed[0] != self._clock.step:
            self._coverage.note(
                "grad_unreduced: missing in steps whose accumulation ended at another micro-step than grad_acc_steps "
                f"({self._clock.grad_acc_steps}) says"
            )

    def _read_weights(self, data_type: str) -> None:
        trained = [weight for weight in self._written[data_type] if weight.parameter.requires_grad]
        held = [(weight, value) for weight in trained if (value := self._source.value(weight)) is not None]
        # Weights may be written to in ways that no version counter sees (`param.data`): always read anew.
        self._read(data_type, *_columns(held), reuse=False)

    def _read(
        self,
        data_type: str,
        weights: Sequence[Weight],
        tensors: Sequence[Any],
        *,
        reuse: bool = True,
        micro_step: int | None = None,
        scale: Any = None,
    ) -> None:
        if not weights:
            return
        if reuse:
            handles = self._measured.handles(tensors, lambda new: self._observer.measure(new, scale))
        else:
            handles = self._observer.measure(tensors, scale)
        self._observer.record(
            [self._ref(data_type, weight, tensor, micro_step) for weight, tensor in zip(weights, tensors, strict=True)],
            handles,
        )

    def _ref(self, data_type: str, weight: Weight, tensor: Any, micro_step: int | None) -> TensorRef:
        call_id = self._clock.next_call_id()
        in_backward = data_type == "grad_unreduced"
        return self._refs.ref(
            data_type,
            weight.name,
            weight.vpp_stage,
            micro_step if in_backward and self.each_micro_step else None,
            call_id,
            (call_id if in_backward else weight.index,),
            self._framework.shape(tensor),
            self._framework.dtype(tensor),
            shard=self._shards[data_type, weight.index],
        )

    def _hook_unfrozen(self) -> None:
        """Parameters that were frozen when the hooks were set and are trained now."""
        part, registrations = self._parts.gradients, self._registrations
        unfrozen = [weight for weight in self._unhooked if weight.parameter.requires_grad]
        if unfrozen and part is not None and registrations is not None:
            self._unhooked = [weight for weight in self._unhooked if weight not in unfrozen]
            part.run(self._source.attach, unfrozen, _Ready(self), registrations)


def _columns(entries: Sequence[tuple[Weight, Any]]) -> tuple[list[Weight], list[Any]]:
    return [weight for weight, _ in entries], [tensor for _, tensor in entries]


class _Ready:
    """What a gradient source calls. Hooks of parameters hold it, so it must not lead back to the parameters."""

    def __init__(self, hooks: WeightHooks) -> None:
        self._hooks = weakref.ref(hooks)

    @property
    def wanted(self) -> bool:
        hooks = self._hooks()
        return hooks is not None and hooks.wants_gradients

    @property
    def each_micro_step(self) -> bool:
        hooks = self._hooks()
        return hooks is not None and hooks.each_micro_step

    def __call__(
        self,
        weight: Weight,
        gradient: Any,
        micro_step: int | None = None,
        scale: Any = None,
        complete: bool = False,
    ) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.gradients_ready_in_backward([(weight, gradient)], micro_step, scale, complete)

    def together(self, entries: Sequence[tuple[Weight, Any]], scale: Any = None, complete: bool = False) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.gradients_ready_in_backward(entries, None, scale, complete)
