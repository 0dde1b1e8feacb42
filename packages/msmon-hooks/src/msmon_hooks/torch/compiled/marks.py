"""Hooks that the compiler traces: they leave marks at what modules are given and return, and at the gradients of it.

All code in this file is traced, so it is plain: an operation that the tracer does not know would break the graph.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from msmon_hooks.torch.compiled.gate import GATE
from msmon_hooks.torch.compiled.operator import MARK, NOTE
from msmon_hooks.torch.passes import is_compiling

_DEPTH = 8
_PLAIN = (torch.Tensor, nn.Parameter)


class _Mark:
    """A hook around a module's forward. It does nothing but where it is traced, and there only while the gate is open.

    Args:
        name: of the module. The tracer guards what it sees of a hook, and would use a graph that it has traced for one
            module for no other of its class: so the name is what a function returns that it is told to call.
        gradients: mark gradients, too.
    """

    def __init__(self, name: str, *, gradients: bool) -> None:
        @torch.compiler.assume_constant_result
        def msmon_name() -> str:
            return name

        self._name = msmon_name
        self._gradients = gradients

    def __reduce__(self) -> tuple[Any, ...]:
        # As hooks of `msmon_hooks.hooks.Hook` do: a copy does nothing, and loads where this package is not installed.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class MarkInputs(_Mark):
    """Notes that a module is called."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling() and GATE.marks:
            NOTE("enter " + self._name())


class MarkOutputs(_Mark):
    """Marks what a module has returned, and what it was called with.

    The latter only now: inputs of a graph are listed in the order in which they are first looked at, and kernels depend
    on it. Where the marks belong, `msmon_hooks.torch.compiled.traced` knows by the note of the call.
    """

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if is_compiling() and GATE.marks:
            name = self._name()
            given: list[tuple[str, int, torch.Tensor]] = []
            for index, value in enumerate(args):
                _find(value, str(index), index, given, _DEPTH)
            for index, (key, value) in enumerate(kwargs.items()):
                _find(value, key, len(args) + index, given, _DEPTH)
            _mark(name, "input", given, len(args), len(args) + len(kwargs), self._gradients)
            returned: list[tuple[str, int, torch.Tensor]] = []
            length = 1
            if isinstance(output, torch.Tensor):
                returned.append(("", 0, output))
            else:
                parts = _parts(output)
                length = len(parts)
                for index, (key, value) in enumerate(parts):
                    _find(value, key, index, returned, _DEPTH)
            _mark(name, "output", returned, 0, length, self._gradients)
            NOTE("leave " + name)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple | list):
        names = getattr(type(value), "_fields", None)
        return [(str(index) if names is None else names[index], one) for index, one in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key), one) for key, one in value.items()]
    module = type(value).__module__
    # Of some of these the tracer knows nothing more.
    if module in ("builtins", "torch", "torch._C", "numpy"):
        return []
    if hasattr(type(value), "__dataclass_fields__"):
        return [(name, getattr(value, name)) for name in type(value).__dataclass_fields__]
    # To list the attributes of an object would be guarded, and one that gets others would be compiled for again.
    NOTE("object " + module + ":" + type(value).__qualname__)
    return []


def _find(value: Any, path: str, position: int, found: list[tuple[str, int, torch.Tensor]], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found.append((path, position, value))
    elif depth:
        for key, one in _parts(value):
            _find(one, path + "_" + key, position, found, depth - 1)


def _mark(
    name: str,
    side: str,
    found: list[tuple[str, int, torch.Tensor]],
    positional: int,
    length: int,
    gradients: bool,
) -> None:
    for index, (path, position, tensor) in enumerate(found):
        has_gradient = 1 if gradients and tensor.requires_grad and not tensor.is_leaf else 0
        where = f"{name}\x1f{side}\x1f{position}\x1f{index}\x1f{len(found)}"
        leaf = f"\x1f-1\x1f-1\x1f{where}\x1f{has_gradient}\x1f{positional}\x1f{length}\x1f{path}"
        if type(tensor) not in _PLAIN:
            NOTE("wrapped " + leaf)
            continue
        MARK(tensor, "f" + leaf)
        if has_gradient:
            _mark_gradient(tensor, "g" + leaf)


def _mark_gradient(tensor: torch.Tensor, text: str) -> None:
    # Of a tensor that comes from outside the graph the hook is a real one, which is called by autograd: it does
    # nothing there, since the graph's inputs are watched from outside.
    tensor.register_hook(lambda gradient: MARK(gradient, text) if is_compiling() else None)
