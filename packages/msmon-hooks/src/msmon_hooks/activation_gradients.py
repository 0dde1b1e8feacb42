"""Gradients of activations, by tensor hooks that the forward hooks set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import Observer
from msmon_hooks.framework import Framework
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.loss_scale import LossScale
from msmon_hooks.measured import Measured
from msmon_hooks.ref_cache import RefCache

if TYPE_CHECKING:
    from msmon_hooks.calls import Call

INPUT = ("input_grad", 0)
OUTPUT = ("output_grad", 1)
"""What targets calls the gradients of a side of a module, and its place in the order of rows."""


class _GradientOf(Hook):
    """Reads the gradient of one tensor, for every name under which a module saw that tensor."""

    def __init__(self, owner: ActivationGradients, step: int, is_leaf: bool) -> None:
        self.owner = owner
        self.step = step
        self.is_leaf = is_leaf
        self.uses: list[tuple[Call, str, tuple[int, int]]] = []

    def __call__(self, gradient: Any) -> None:
        owner = self.owner
        # A graph that outlives its step belongs to no row.
        if self.uses and owner.active and owner.clock.step == self.step and owner.part.enabled:
            try:
                owner.read(self.uses, gradient)
            except Exception as error:
                owner.part.fail(error)
            if self.is_leaf:
                # Every backward that reaches a leaf calls its hook; the uses so far have had theirs.
                self.uses.clear()


class ActivationGradients:
    """Reads the gradient of the loss with respect to a tensor, over all uses of that tensor.

    The tensor is hooked, not the module: nothing is inserted into the graph. A tensor that several modules see
    (output of one, input of the next) gets one hook and is read once.
    """

    def __init__(
        self,
        *,
        framework: Framework,
        clock: Clock,
        observer: Observer,
        part: Guarded,
        coverage: Coverage,
        loss_scale: LossScale,
    ) -> None:
        self.clock = clock
        self.part = part
        self.active = True
        self._framework = framework
        self._observer = observer
        self._coverage = coverage
        self._loss_scale = loss_scale
        self._hooked = Measured(framework)
        self._measured = Measured(framework)
        self._refs = RefCache()
        self._expected: set[tuple[int, str]] = set()
        self._leaf_handles: list[Any] = []

    def watch(self, tensor: Any, call: Call, name: str, position: tuple[int, int]) -> None:
        """Have the gradient of `tensor` read under `name`.

        `position`: side of the module, index among the tensors there.
        """
        hook = self._hooked.get(tensor)
        if hook is None:
            hook = _GradientOf(self, self.clock.step, self._framework.is_leaf(tensor))
            handle = self._framework.register_hook(tensor, hook)
            if hook.is_leaf:
                # The hook of a leaf outlives the graph; it would be there again in every step.
                self._leaf_handles.append(handle)
            self._hooked.put(tensor, hook)
        hook.uses.append((call, name, position))
        key = call.site.vpp_stage, name
        if key not in self._expected and self._framework.requires_grad(tensor):
            self._expected.add(key)
            self._coverage.expect("actv_grad", name, "no gradient reached it", stage=call.site.vpp_stage)

    def read(self, uses: list[tuple[Call, str, tuple[int, int]]], gradient: Any) -> None:
        """The gradient has been computed."""
        scale = self._loss_scale.of(gradient)
        (handle,) = self._measured.handles([gradient], lambda new: self._observer.measure(new, scale))
        shape, dtype, _ = self._framework.describe(gradient)
        refs = []
        for call, name, position in uses:
            order = (call.micro_step, -call.end, *position)
            number = self.clock.next_call_id()
            stage = call.site.vpp_stage
            refs.append(self._refs.ref("actv_grad", name, stage, call.micro_step, number, order, shape, dtype))
        self._observer.record(refs, [handle] * len(refs))

    def step_ends(self) -> None:
        """Forget the step's tensors and take the hooks of leaves off."""
        self._hooked.clear()
        self._measured.clear()
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def close(self) -> None:
        """Hooks that still sit in graphs do nothing from now on."""
        self.active = False
        self.step_ends()
