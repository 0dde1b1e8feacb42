"""Looks at the inputs and outputs of every module in the first step, for ``print_struct``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from msmon_hooks.guard import Part
from msmon_hooks.structure import (
    describe_tensor,
    gradients_document,
    inputs_document,
    output_document,
    output_elements,
)
from msmon_hooks.torch.backward import in_backward
from msmon_hooks.torch.hooks import Hook
from msmon_hooks.torch.measured import dtype_name, shape_of
from msmon_hooks.torch.module_calls import AfterCall, BeforeCall, ModuleCalls
from msmon_hooks.torch.parameters import is_tensor
from msmon_hooks.torch.training_forwards import TrainingForwards


class StructureHooks:
    """Describes the first call of each module, and which of its tensors got a gradient.

    Args:
        on_structure: called once, after the first step.
    """

    def __init__(
        self, *, part: Part, forwards: TrainingForwards, on_structure: Callable[[dict[str, Any]], None]
    ) -> None:
        self.part = part
        self.active = True
        self._forwards = forwards
        self._on_structure = on_structure
        self._open: dict[str, dict[str, str]] = {}
        self._calls: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self._gradients: dict[str, dict[str, dict[str, str | None]]] = {}
        self._handles: list[Any] = []
        self._hooked: list[tuple[nn.Module, BeforeCall | AfterCall]] = []
        self._module_calls: ModuleCalls | None = None

    def attach(self, modules: Mapping[tuple[int, str], nn.Module], calls: ModuleCalls) -> None:
        """Hook every module."""
        for (stage, name), module in modules.items():
            for hook in (_Enters(self, f"{stage}:{name}", stage), _Leaves(self, f"{stage}:{name}")):
                calls.add(module, hook)
                self._hooked.append((module, hook))
        self._module_calls = calls

    def enter(self, key: str, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        if in_backward() or key in self._calls or not self._forwards.recording(stage):
            return
        self._open[key] = inputs_document(args, kwargs, _text)
        elements = {str(index): value for index, value in enumerate(args)} | kwargs
        self._watch(key, "input_grad", elements)

    def leave(self, key: str, output: Any) -> None:
        """A module has run."""
        if in_backward() or key not in self._open:
            return
        self._calls[key] = (self._open.pop(key), output_document(output, _text))
        self._watch(key, "output_grad", output_elements(output, is_tensor))

    def _watch(self, key: str, side: str, elements: Mapping[str, Any]) -> None:
        arrived: dict[str, str | None] = dict.fromkeys(elements)
        self._gradients.setdefault(key, {})[side] = arrived
        for element, value in elements.items():
            if is_tensor(value) and value.requires_grad:
                self._handles.append(value.register_hook(_Arrives(arrived, element)))

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

    def fire(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.part.run(self.owner.enter, self.key, self.stage, args, kwargs)


class _Leaves(AfterCall):
    def __init__(self, owner: StructureHooks, key: str) -> None:
        self.owner = owner
        self.key = key

    def fire(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.owner.active:
            self.owner.part.run(self.owner.leave, self.key, output)


class _Arrives(Hook):
    def __init__(self, arrived: dict[str, str | None], element: str) -> None:
        self.arrived = arrived
        self.element = element

    def __call__(self, gradient: torch.Tensor) -> None:
        self.arrived[self.element] = _text(gradient)


def _text(value: Any) -> str | None:
    return describe_tensor(shape_of(value), dtype_name(value.dtype)) if is_tensor(value) else None
