"""A graph as the compiler has traced it: its marks, told where they are in the region that is compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from attrs import Factory, define, evolve, field
from torch import fx

from msmon_hooks.names import is_closed
from msmon_hooks.torch.compiled.leaves import FORWARD, GRADIENT, Leaf
from msmon_hooks.torch.compiled.operator import MARK, NOTE


def place_marks(graph_module: fx.GraphModule, entry: str | None) -> Traced:
    """Number the calls of modules in a graph, name the modules from the entry of the region, move the marks of inputs
    to where the call begins, and take the notes out.

    Code that was compiled for one module is run for others of its class: so nothing in it may say which one it was.

    Args:
        graph_module: what was traced; changed in place.
        entry: the module whose call has led here, by stage and name as in `0:blocks.3`; None: a function's has.
    """
    result = Traced()
    graphs = [one.graph for one in graph_module.modules() if isinstance(one, fx.GraphModule)]
    order = {node: index for graph in graphs for index, node in enumerate(graph.nodes)}
    calls: list[_Call] = []
    begun = ended = 0
    ends: dict[int, int] = {}
    placed: list[tuple[fx.Node, Leaf]] = []
    notes: list[fx.Node] = []
    called: dict[str, list[_Call | None]] = {}
    hooks: dict[str, list[tuple[fx.Node, fx.Node, _Call | None]]] = {}
    for node, carrier in list(_marks(graph_module)):
        text = str(node.args[-1])
        if node.target is MARK:
            kind, rest = text[:1], text[1:]
            leaf = Leaf.parse(text)
            call = next((call for call in reversed(calls) if call.module == leaf.module), None)
            if kind == GRADIENT:
                hooks.setdefault(rest, []).append((node, carrier, call))
                continue
            called.setdefault(rest, []).append(call)
            if _move(node, leaf, call, order):
                placed.append((node, evolve(leaf, call=begun if call is None else call.number)))
            else:
                # It was not there yet: the module has put it into a list that it was given.
                node.graph.erase_node(node)
            continue
        what, _, name = text.partition(" ")
        if what == "wrapped":
            result.wrapped.append(Leaf.parse(FORWARD + name))
        elif what == "object" and _may_hold_tensors(name):
            result.objects.append(name.replace(":", "."))
        elif what == "enter":
            calls.append(_Call(name, begun, node))
            begun += 1
        elif what == "leave":
            index = next((i for i in range(len(calls) - 1, -1, -1) if calls[i].module == name), None)
            if index is not None:
                ends[calls[index].number] = ended
                del calls[index:]
            ended += 1
        notes.append(node)
    # A hook on a tensor from outside of a checkpoint is set before it, so that its place does not say to which call it
    # belongs; but where a gradient is marked, the tensor is, too.
    for rest, marks in hooks.items():
        leaf = Leaf.parse(GRADIENT + rest)
        whose = called.get(rest, [])
        if len(whose) != len(marks):
            whose = [call for _, _, call in marks]
        for (node, carrier, _), call in zip(marks, whose, strict=True):
            if (len(marks) == 1 or carrier.graph is marks[0][1].graph) and _move(carrier, leaf, call, order):
                placed.append((node, evolve(leaf, call=begun if call is None else call.number)))
            else:
                node.graph.erase_node(node)
    for node, leaf in placed:
        module = _from_entry(leaf.module, entry)
        if module is None:
            node.graph.erase_node(node)
            continue
        node.args = (node.args[0], evolve(leaf, module=module, end=ends.get(leaf.call, ended)).text())
    for node in notes:
        node.graph.erase_node(node)
    _recompile(graph_module)
    return result


@define
class Traced:
    """What of a graph has no marks, although it may be tensors."""

    wrapped: list[Leaf] = field(factory=list)
    """Tensors of a class of their own; with the modules' whole names."""
    objects: list[str] = field(factory=list)
    """Names of classes whose objects are not looked into."""


@define
class _Call:
    """A call of a module that has begun."""

    module: str
    number: int
    begins: fx.Node
    last: fx.Node = field(default=Factory(lambda self: self.begins, takes_self=True))
    """Behind which the next mark of an input belongs."""


def _move(carrier: fx.Node, leaf: Leaf, call: _Call | None, order: Mapping[fx.Node, int]) -> bool:
    """Move the mark of an input to where the call begins; whether the input was there."""
    if leaf.side == "output" or call is None or carrier.graph is not call.begins.graph:
        return True
    tensor = carrier.args[0]
    while isinstance(tensor, fx.Node) and _is_hook(tensor):
        # The same tensor: a hook on its gradient may have been set inside of the call.
        tensor = tensor.args[0]
    if not isinstance(tensor, fx.Node) or order[tensor] > order[call.begins]:
        return False
    carrier.args = (tensor, *carrier.args[1:])
    for node in [*(one for one in carrier.all_input_nodes if one.op == "get_attr"), carrier]:
        call.last.append(node)
        call.last = node
    return True


def _may_hold_tensors(name: str) -> bool:
    """Whether outside of a graph an object of a class is looked into, and it is none of Python's own."""
    module, _, path = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, part, None)
    if not isinstance(cls, type):
        # A class that a function has made.
        return True
    is_own = module.partition(".")[0] in sys.stdlib_module_names and cls is not SimpleNamespace
    return not is_own and not is_closed(cls) and not issubclass(cls, Enum)


def take_out(graph_module: fx.GraphModule) -> None:
    """Leave no mark in a graph."""
    for node, _ in list(_marks(graph_module)):
        node.graph.erase_node(node)
    _recompile(graph_module)


def _from_entry(module: str, entry: str | None) -> str | None:
    """The module's name, seen from the entry; None for the entry itself, whose call is watched from outside."""
    if entry is None:
        return module
    if module == entry:
        return None
    start = entry if entry.endswith(":") else entry + "."
    return "." + module[len(start) :] if module.startswith(start) else module


def _marks(graph_module: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node]]:
    """All marks and notes, in the order in which the graph runs, each with the node by which it is in the graph of its
    call: itself, or where it is on a gradient, that which sets the hook."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and node.target in (MARK, NOTE):
            yield node, node
        elif node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
            for inner in node.all_input_nodes:
                body = getattr(graph_module, str(inner.target), None) if inner.op == "get_attr" else None
                if isinstance(body, fx.GraphModule):
                    for mark, carrier in _marks(body):
                        yield mark, node if _is_hook(node) else carrier


def _is_hook(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == "register_hook"


def _recompile(graph_module: fx.GraphModule) -> None:
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule):
            module.recompile()
