"""Gradients of activations, by tensor hooks that the forward hooks set."""

from __future__ import annotations

import weakref
from typing import Any

from msmon_hooks.events import TensorRef
from msmon_hooks.hooks import Hook
from msmon_hooks.module_calls import ModuleCall
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations

INPUT = ("input_grad", 0)
OUTPUT = ("output_grad", 1)
"""What targets calls the gradients of a side of a module, and its place in the order of rows."""

_NONE = "autograd gave None as its gradient: it is not used, or a backward function of the program's own says so"

Use = tuple[ModuleCall, str, tuple[int, int]]
"""A call that saw a tensor, with the tensor's name there and its position: side, index among the tensors."""

Uses = list[Use]


class _GradientOf(Hook):
    """Reads the gradient of one tensor, for every name under which a module saw that tensor."""

    def __init__(self, owner: ActivationGradients, step: int, is_leaf: bool) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.step = step
        self.is_leaf = is_leaf
        self.uses: Uses = []
        self.was_read = False

    def fire(self, gradient: Any) -> None:
        # A graph that outlives its step belongs to no row.
        if self.uses and self.owner.clock.step == self.step and self.owner.clock.sampled:
            if self.was_read and self.owner.in_weight_pass():
                return
            self.was_read = True
            self.owner.read(self.uses, gradient)
            if self.is_leaf:
                # Every backward that reaches a leaf calls its hook; the uses so far have had theirs.
                self.uses.clear()


class ActivationGradients:
    """Reads the gradient of the loss with respect to a tensor, over all uses of that tensor.

    The tensor is hooked, not the module: nothing is inserted into the graph. A tensor that several modules see
    (output of one, input of the next) gets one hook and is read once.
    """

    def __init__(self, recording: Recording) -> None:
        self.guard = recording.guards("activation gradients")
        self.clock = recording.clock
        self.in_weight_pass = recording.framework.in_weight_pass
        self._recording = recording
        self._hooks: dict[int, tuple[weakref.ref[Any], int | None, _GradientOf]] = {}
        self._expected: set[tuple[int, str]] = set()
        self._leaves = Registrations()

    def watch(self, tensor: Any, call: ModuleCall, name: str, position: tuple[int, int]) -> None:
        """Have the gradient of `tensor` read under `name`.

        `position`: side of the module, index among the tensors there.
        """
        framework, stage = self._recording.framework, call.site.vpp_stage
        self._hook(tensor).uses.append((call, name, position))
        if (stage, name) not in self._expected and framework.requires_grad(tensor):
            self._expected.add((stage, name))
            self._recording.coverage.expect("actv_grad", name, "no gradient reached it", stage=stage)

    def _hook(self, tensor: Any) -> _GradientOf:
        """The hook of this tensor at this place in the graph, which an operation in place moves."""
        framework = self._recording.framework
        version = framework.version(tensor)
        known = self._hooks.get(id(tensor))
        if known is not None and version is not None and known[1] == version and known[0]() is tensor:
            return known[2]
        hook = _GradientOf(self, self.clock.step, framework.is_leaf(tensor))
        removable = framework.register_hook(tensor, hook)
        if hook.is_leaf:
            # The hook of a leaf outlives the graph; it would be there again in every step.
            self._leaves.add(removable)
        self._hooks[id(tensor)] = (weakref.ref(tensor), version, hook)
        return hook

    def read(self, uses: Uses, gradient: Any) -> None:
        """The gradient has been computed; None: autograd has none for this tensor."""
        recording = self._recording
        if gradient is None:
            for call, name, _ in uses:
                recording.coverage.explain("actv_grad", name, _NONE, stage=call.site.vpp_stage)
            return
        (handle,) = recording.observer.measure([gradient], recording.loss_scale.of(gradient))
        shape, dtype, _ = recording.framework.describe(gradient)
        refs = [self.ref(use, shape, dtype) for use in uses]
        recording.observer.record(refs, [handle] * len(refs))

    def ref(self, use: Use, shape: tuple[int, ...], dtype: str) -> TensorRef:
        """The description of a gradient that is read now."""
        call, name, position = use
        order = (call.micro_step, -call.end, *position)
        number, stage = self.clock.next_call_id(), call.site.vpp_stage
        return self._recording.refs.ref("actv_grad", name, stage, call.micro_step, number, order, shape, dtype)

    def step_ends(self) -> None:
        """Forget the step's tensors and take the hooks of leaves off."""
        self._hooks.clear()
        self._leaves.close()
