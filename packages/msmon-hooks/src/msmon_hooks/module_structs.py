"""Looks at the inputs and outputs of every module in the first step, for `print_struct`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msmon_hooks.call_hooks import AfterCall, BeforeCall, ModuleCalls
from msmon_hooks.guard import Guarded
from msmon_hooks.hooks import Hook
from msmon_hooks.structure import (
    describe_tensor,
    gradients_document,
    inputs_document,
    output_document,
    output_elements,
)
from msmon_hooks.training_forwards import TrainingForwards


class StructureHooks:
    """Describes the first call of each module, and which of its tensors got a gradient.

    Args:
        on_structure: called once, after the first step.
    """

    def __init__(
        self, *, part: Guarded, forwards: TrainingForwards, on_structure: Callable[[dict[str, Any]], None]
    ) -> None:
        self.part = part
        self.active = True
        self._forwards = forwards
        self._framework = forwards.framework
        self._on_structure = on_structure
        self._open: dict[str, dict[str, str]] = {}
        self._calls: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self._gradients: dict[str, dict[str, dict[str, str | None]]] = {}
        self._handles: list[Any] = []
        self._hooked: list[tuple[Any, BeforeCall | AfterCall]] = []
        self._module_calls: ModuleCalls | None = None

    def attach(self, modules: Mapping[tuple[int, str], Any], calls: ModuleCalls) -> None:
        """Hook every module."""
        for (stage, name), module in modules.items():
            for hook in (_Enters(self, f"{stage}:{name}", stage), _Leaves(self, f"{stage}:{name}")):
                calls.add(module, hook)
                self._hooked.append((module, hook))
        self._module_calls = calls

    def enter(self, key: str, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        if self._framework.in_backward() or key in self._calls or not self._forwards.recording(stage):
            return
        self._open[key] = inputs_document(args, kwargs, self.text)
        elements = {str(index): value for index, value in enumerate(args)} | kwargs
        self._watch(key, "input_grad", elements)

    def leave(self, key: str, output: Any) -> None:
        """A module has run."""
        if self._framework.in_backward() or key not in self._open:
            return
        self._calls[key] = (self._open.pop(key), output_document(output, self.text))
        self._watch(key, "output_grad", output_elements(output, self._framework.is_tensor))

    def _watch(self, key: str, side: str, elements: Mapping[str, Any]) -> None:
        arrived: dict[str, str | None] = dict.fromkeys(elements)
        self._gradients.setdefault(key, {})[side] = arrived
        for element, value in elements.items():
            if self._framework.is_tensor(value) and self._framework.can_have_gradient(value):
                hook = _Arrives(self, arrived, element)
                self._handles.append(self._framework.register_hook(value, hook))

    def text(self, value: Any) -> str | None:
        """A tensor's size and dtype; None for anything else."""
        framework = self._framework
        if not framework.is_tensor(value):
            return None
        return describe_tensor(framework.shape(value), framework.dtype(value))

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: take the hooks off, and return what hands the document over."""
        if not self.active:
            return None
        self.close()
        return partial(
            self._on_structure,
            {
                key: {
                    "input": inputs,
                    "output": output,
                    "input_grad": gradients_document(self._gradients[key]["input_grad"]),
                    "output_grad": gradients_document(self._gradients[key]["output_grad"]),
                }
                for key, (inputs, output) in self._calls.items()
            },
        )

    def close(self) -> None:
        """Take the hooks off."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._module_calls is not None:
            for module, hook in self._hooked:
                self._module_calls.remove(module, hook)
        self._hooked.clear()


class _Enters(BeforeCall):
    def __init__(self, owner: StructureHooks, key: str, stage: int) -> None:
        self.owner = owner
        self.key = key
        self.stage = stage

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.part.run(self.owner.enter, self.key, self.stage, args, kwargs)


class _Leaves(AfterCall):
    def __init__(self, owner: StructureHooks, key: str) -> None:
        self.owner = owner
        self.key = key

    def fire(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.part.run(self.owner.leave, self.key, output)


class _Arrives(Hook):
    def __init__(self, owner: StructureHooks, arrived: dict[str, str | None], element: str) -> None:
        self.owner = owner
        self.arrived = arrived
        self.element = element

    def __call__(self, gradient: Any) -> None:
        self.arrived[self.element] = self.owner.text(gradient)
