"""Weights, their gradients and moments: what is read of parameters in a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from attrs import frozen

from msmon_hooks._events import Observer, TensorRef
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.source import GradientSource
from msmon_hooks.torch.measured import Measured
from msmon_hooks.torch.parameters import Weight


@frozen(kw_only=True)
class WeightParts:
    """The parts that read parameters; each fails alone. None: not asked for."""

    gradients: Part | None
    moments: Part | None
    weights: Part | None


class WeightHooks:
    """Reads the gradients of parameters in backward, and everything else around the optimizer's step."""

    def __init__(
        self,
        *,
        weights: Sequence[Weight],
        source: GradientSource,
        clock: Clock,
        observer: Observer,
        coverage: Coverage,
        parts: WeightParts,
        each_micro_step: bool,
    ) -> None:
        self.weights = weights
        self._source = source
        self._clock = clock
        self._observer = observer
        self._coverage = coverage
        self._parts = parts
        self._each_micro_step = each_micro_step and source.each_micro_step
        self._measured = Measured()
        self._unhooked: list[Weight] = []
        self._registrations: Registrations | None = None

    def attach(self, registrations: Registrations) -> None:
        """Hook the parameters' gradients and write down what is expected."""
        self._registrations = registrations
        if self._parts.gradients is not None:
            self._source.attach(self.weights, self._ready, registrations)
            self._unhooked = [weight for weight in self.weights if not weight.parameter.requires_grad]
            self._expect(("grad_unreduced", "grad_reduced"), "no gradient")
        if self._parts.moments is not None:
            self._expect(("exp_avg", "exp_avg_sq"), "the optimizer keeps no such state")
        if self._parts.weights is not None:
            self._expect(("param_origin", "param_updated"), "no optimizer step was seen")

    def _expect(self, data_types: tuple[str, ...], reason: str) -> None:
        for weight in self.weights:
            why = reason if weight.parameter.requires_grad else "frozen"
            for data_type in data_types:
                self._coverage.expect(data_type, weight.name, why)

    def _ready(self, weight: Weight, gradient: torch.Tensor, micro_step: int | None = None, scale: Any = None) -> None:
        """A backward has completed the gradient of a parameter.

        ``micro_step``: where the engine knows better than the clock; ``scale``: what the values are multiplied by.
        """
        part = self._parts.gradients
        if part is None or not self._clock.sampled or not part.enabled:
            return
        micro_step = self._clock.micro_step if micro_step is None else micro_step
        if self._each_micro_step or micro_step == self._clock.grad_acc_steps - 1:
            part.run(self._read, "grad_unreduced", [weight], [gradient], micro_step=micro_step, scale=scale)

    def step_begins(self) -> None:
        """Read what stands before the update, except gradients, which a closure may yet have to compute."""
        if self._unhooked:
            self._hook_unfrozen()
        if not self._clock.sampled:
            return
        if self._parts.moments is not None:
            self._parts.moments.run(self._read_moments)
        if self._parts.weights is not None:
            self._parts.weights.run(self._read_weights, "param_origin")

    def gradients_ready(self) -> None:
        """Read the gradients that the update consumes."""
        if self._clock.sampled and self._parts.gradients is not None:
            self._parts.gradients.run(self._read_gradients)

    def step_ends(self) -> None:
        """Read what stands after the update."""
        if self._clock.sampled and self._parts.weights is not None:
            self._parts.weights.run(self._read_weights, "param_updated")
        self._measured.clear()

    def current_gradients(self) -> list[tuple[Weight, torch.Tensor]]:
        """The gradients that the optimizer would consume now."""
        found = ((weight, self._source.reduced(weight)) for weight in self.weights)
        return [(weight, gradient) for weight, gradient in found if gradient is not None]

    def _read_gradients(self) -> None:
        present = self.current_gradients()
        weights = [weight for weight, _ in present]
        gradients = [gradient for _, gradient in present]
        scale = self._source.scale()
        if not self._each_micro_step and not self._clock.in_last_micro_step and self._source.reads_grad_at_step:
            # The accumulation ended at another micro-step than announced: what backward left is still there.
            self._read("grad_unreduced", weights, gradients, scale=scale)
        written = [self._source.writes_reduced(weight) for weight in weights]
        self._read("grad_reduced", list(compress(weights, written)), list(compress(gradients, written)), scale=scale)

    def _read_moments(self) -> None:
        found: dict[str, list[tuple[Weight, torch.Tensor]]] = {"exp_avg": [], "exp_avg_sq": []}
        for weight in self.weights:
            for name, value in self._source.moments(weight).items():
                found[name].append((weight, value))
        for name, entries in found.items():
            self._read(name, [weight for weight, _ in entries], [value for _, value in entries])

    def _read_weights(self, data_type: str) -> None:
        trained = [weight for weight in self.weights if weight.parameter.requires_grad]
        held = [(weight, value) for weight in trained if (value := self._source.value(weight)) is not None]
        # Weights may be written to in ways that no version counter sees (``param.data``): always read anew.
        self._read(data_type, [weight for weight, _ in held], [value for _, value in held], reuse=False)

    def _read(
        self,
        data_type: str,
        weights: Sequence[Weight],
        tensors: Sequence[torch.Tensor],
        *,
        reuse: bool = True,
        micro_step: int | None = None,
        scale: Any = None,
    ) -> None:
        handles = [self._measured.get(tensor) if reuse else None for tensor in tensors]
        unread = [index for index, handle in enumerate(handles) if handle is None]
        if unread:
            new = self._observer.measure([tensors[index] for index in unread], scale)
            for index, handle in zip(unread, new, strict=True):
                handles[index] = handle
                if reuse:
                    self._measured.put(tensors[index], handle)
        self._observer.record(
            [self._ref(data_type, weight, tensor, micro_step) for weight, tensor in zip(weights, tensors, strict=True)],
            [handle if handle is not None else -1 for handle in handles],
        )

    def _ref(self, data_type: str, weight: Weight, tensor: torch.Tensor, micro_step: int | None) -> TensorRef:
        call_id = self._clock.next_call_id()
        in_backward = data_type == "grad_unreduced"
        return TensorRef(
            data_type=data_type,
            name=weight.name,
            vpp_stage=weight.vpp_stage,
            micro_step=micro_step if in_backward and self._each_micro_step else None,
            call_id=call_id,
            order=(call_id if in_backward else weight.index,),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype),
        )

    def _hook_unfrozen(self) -> None:
        """Parameters that were frozen when the hooks were set and are trained now."""
        part, registrations = self._parts.gradients, self._registrations
        unfrozen = [weight for weight in self._unhooked if weight.parameter.requires_grad]
        if unfrozen and part is not None and registrations is not None:
            self._unhooked = [weight for weight in self._unhooked if weight not in unfrozen]
            part.run(self._source.attach, unfrozen, self._ready, registrations)
