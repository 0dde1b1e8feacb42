"""Gradients of activations, by tensor hooks that the forward hooks set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from msmon_hooks._events import Observer, TensorRef
from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.guard import Part
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.measured import Measured

if TYPE_CHECKING:
    from msmon_hooks.torch.modules import Call


class _GradientOf(Hook):
    """Reads the gradient of one tensor, for every name under which a module saw that tensor."""

    def __init__(self, owner: ActivationGradients, step: int) -> None:
        self.owner = owner
        self.step = step
        self.uses: list[tuple[Call, str, tuple[bool, int]]] = []

    def __call__(self, gradient: torch.Tensor) -> None:
        owner = self.owner
        # A graph that outlives its step belongs to no row.
        if owner.active and owner.clock.step == self.step and owner.part.enabled:
            owner.part.run(owner.read, self.uses, gradient)


class ActivationGradients:
    """Reads the gradient of the loss with respect to a tensor, over all uses of that tensor.

    The tensor is hooked, not the module: nothing is inserted into the graph. A tensor that several modules see
    (output of one, input of the next) gets one hook and is read once.
    """

    def __init__(self, *, clock: Clock, observer: Observer, part: Part, coverage: Coverage) -> None:
        self.clock = clock
        self.part = part
        self.active = True
        self._observer = observer
        self._coverage = coverage
        self._hooked = Measured()
        self._leaf_handles: list[Any] = []

    def watch(self, tensor: torch.Tensor, call: Call, name: str, position: tuple[bool, int]) -> None:
        """Have the gradient of ``tensor`` read under ``name``. ``position``: (is an output, index among them)."""
        hook = self._hooked.get(tensor)
        if hook is None:
            hook = _GradientOf(self, self.clock.step)
            handle = tensor.register_hook(hook)
            if tensor.is_leaf:
                # The hook of a leaf outlives the graph; it would be there again in every step.
                self._leaf_handles.append(handle)
            self._hooked.put(tensor, hook)
        hook.uses.append((call, name, position))
        self._coverage.expect("actv_grad", name, "no gradient reached it")

    def read(self, uses: list[tuple[Call, str, tuple[bool, int]]], gradient: torch.Tensor) -> None:
        """The gradient has been computed."""
        handle = self._observer.measure([gradient])[0]
        refs = [
            TensorRef(
                data_type="actv_grad",
                name=name,
                vpp_stage=call.site.vpp_stage,
                micro_step=call.micro_step,
                call_id=self.clock.next_call_id(),
                order=(call.micro_step, -call.end, *position),
                shape=tuple(gradient.shape),
                dtype=str(gradient.dtype),
            )
            for call, name, position in uses
        ]
        self._observer.record(refs, [handle] * len(refs))

    def step_ends(self) -> None:
        """Forget the step's tensors and take the hooks of leaves off."""
        self._hooked.clear()
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def close(self) -> None:
        """Hooks that still sit in graphs do nothing from now on."""
        self.active = False
        self.step_ends()
