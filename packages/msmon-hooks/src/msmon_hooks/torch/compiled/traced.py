"""A graph as the compiler has traced it: its marks, told where they are in the region that is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import evolve
from torch import fx

from msmon_hooks.torch.compiled.leaves import Leaf
from msmon_hooks.torch.compiled.operator import MARK, NOTE


def place_marks(graph_module: fx.GraphModule, entry: str | None) -> list[Leaf]:
    """Number the calls of modules in a graph and name the modules from the entry of the region; take the notes out.

    Code that was compiled for one module is run for others of its class: so nothing in it may say which one it was.

    Args:
        graph_module: what was traced; changed in place.
        entry: the module whose call has led here, by stage and name as in `0:blocks.3`; None: a function's has.

    Returns:
        Tensors that cannot be marked, since they are of a class of their own; with the modules' whole names.
    """
    wrapped: list[Leaf] = []
    calls: list[tuple[str, int]] = []
    begun = ended = 0
    ends: dict[int, int] = {}
    placed: list[tuple[fx.Node, Leaf]] = []
    for node in list(_marks(graph_module)):
        text = str(node.args[-1])
        if node.target is NOTE:
            what, _, name = text.partition(" ")
            if what == "wrapped":
                wrapped.append(Leaf.parse("f" + name))
            elif what == "enter":
                calls.append((name, begun))
                begun += 1
            elif what == "leave":
                index = next((i for i in range(len(calls) - 1, -1, -1) if calls[i][0] == name), None)
                if index is not None:
                    ends[calls[index][1]] = ended
                    del calls[index:]
                ended += 1
            node.graph.erase_node(node)
            continue
        leaf = Leaf.parse(text)
        number = next((number for name, number in reversed(calls) if name == leaf.module), begun)
        placed.append((node, evolve(leaf, call=number)))
    for node, leaf in placed:
        module = _from_entry(leaf.module, entry)
        if module is None:
            node.graph.erase_node(node)
            continue
        node.args = (node.args[0], evolve(leaf, module=module, end=ends.get(leaf.call, ended)).text())
    _recompile(graph_module)
    return wrapped


def take_out(graph_module: fx.GraphModule) -> None:
    """Leave no mark in a graph."""
    for node in list(_marks(graph_module)):
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


def _marks(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """All marks and notes, in the order in which the graph runs; those of gradients where the tensor is made."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and node.target in (MARK, NOTE):
            yield node
        elif node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
            for inner in node.all_input_nodes:
                body = getattr(graph_module, str(inner.target), None) if inner.op == "get_attr" else None
                if isinstance(body, fx.GraphModule):
                    yield from _marks(body)


def _recompile(graph_module: fx.GraphModule) -> None:
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule):
            module.recompile()
