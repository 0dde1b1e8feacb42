"""Looks at the inputs and outputs of every module in the first step, for `print_struct`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msmon_hooks.call_hooks import AfterCall, BeforeCall, CallHooks
from msmon_hooks.hooks import Hook
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.structure import (
    describe_tensor,
    gradients_document,
    inputs_document,
    output_document,
    output_elements,
)
from msmon_hooks.training_forwards import TrainingForwards


class StructureHooks:
    """Describes the first call of each module, and which of its tensors got a gradient; hands the document to
    `Request.on_structure`, once, after the first step."""

    def __init__(self, recording: Recording, forwards: TrainingForwards, call_hooks: CallHooks) -> None:
        self.guard = recording.guards("module structure")
        self._recording = recording
        self._framework = recording.framework
        self._forwards = forwards
        self._call_hooks = call_hooks
        self._open: dict[str, dict[str, str]] = {}
        self._seen: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self._gradients: dict[str, dict[str, dict[str, str | None]]] = {}
        self._tensor_hooks = Registrations()

    def attach(self, modules: Mapping[tuple[int, str], Any]) -> None:
        """Hook every module."""
        for (stage, name), module in modules.items():
            self._call_hooks.add(module, _Enters(self, f"{stage}:{name}", stage))
            self._call_hooks.add(module, _Leaves(self, f"{stage}:{name}"))

    def enter(self, key: str, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        if self._framework.in_backward() or key in self._seen or not self._forwards.recording(stage):
            return
        self._open[key] = inputs_document(args, kwargs, self.text)
        elements = {str(index): value for index, value in enumerate(args)} | kwargs
        self._watch(key, "input_grad", elements)

    def leave(self, key: str, output: Any) -> None:
        """A module has run."""
        if self._framework.in_backward() or key not in self._open:
            return
        self._seen[key] = (self._open.pop(key), output_document(output, self.text))
        self._watch(key, "output_grad", output_elements(output, self._framework.is_tensor))

    def _watch(self, key: str, side: str, elements: Mapping[str, Any]) -> None:
        arrived: dict[str, str | None] = dict.fromkeys(elements)
        self._gradients.setdefault(key, {})[side] = arrived
        for element, value in elements.items():
            if self._framework.is_tensor(value) and self._framework.can_have_gradient(value):
                hook = _Arrives(self, arrived, element)
                self._tensor_hooks.add(self._framework.register_hook(value, hook))

    def text(self, value: Any) -> str | None:
        """A tensor's size and dtype; None for anything else."""
        framework = self._framework
        if not framework.is_tensor(value):
            return None
        return describe_tensor(framework.shape(value), framework.dtype(value))

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: what hands the document over."""
        on_structure = self._recording.request.on_structure
        document = {
            key: {
                "input": inputs,
                "output": output,
                "input_grad": gradients_document(self._gradients[key]["input_grad"]),
                "output_grad": gradients_document(self._gradients[key]["output_grad"]),
            }
            for key, (inputs, output) in self._seen.items()
        }
        return None if on_structure is None else partial(on_structure, document)

    def close(self) -> None:
        """Take the hooks off."""
        self._tensor_hooks.close()
        self._call_hooks.close()


class _Enters(BeforeCall):
    def __init__(self, owner: StructureHooks, key: str, stage: int) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.key = key
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.enter(self.key, self.stage, args, kwargs)


class _Leaves(AfterCall):
    def __init__(self, owner: StructureHooks, key: str) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.key = key

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.owner.leave(self.key, output)


class _Arrives(Hook):
    def __init__(self, owner: StructureHooks, arrived: dict[str, str | None], element: str) -> None:
        super().__init__(owner.guard)
        self.owner = owner
        self.arrived = arrived
        self.element = element

    def fire(self, gradient: Any) -> None:
        self.arrived[self.element] = self.owner.text(gradient)
