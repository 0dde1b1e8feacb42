"""Taking marks out of a graph of forward and backward before it is parted: what they carry goes onto the values."""

from __future__ import annotations

import torch
from torch import fx

from msmon_hooks.torch.compiled.interfaces import MEMBER, add_digest
from msmon_hooks.torch.compiled.operator import MARK

aten = torch.ops.aten
_SAME_ELEMENTS = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.alias.default,
        aten.detach.default,
        aten.clone.default,
    }
)
"""Operators whose result has the elements of their first argument, each once."""


def strip(graph: fx.Graph) -> None:
    """Take the marks out. Each value keeps, in its meta data, what the marks on it and on views of it carry, with shape
    and dtype there; each input of the graph keeps what all marks carry."""
    marks = [node for node in graph.nodes if node.op == "call_function" and node.target is MARK]
    if not marks:
        return
    texts = []
    for node in marks:
        marked, text = node.args
        assert isinstance(marked, fx.Node)
        value = marked.meta.get("val")
        # A size that is known only when the graph runs is None.
        shape = None if value is None else [size if isinstance(size, int) else None for size in value.shape]
        source = _source(marked)
        dtype = "" if value is None else str(value.dtype)
        source.meta[MEMBER] = (*source.meta.get(MEMBER, ()), (text, shape, dtype))
        texts.append(text)
        graph.erase_node(node)
    part = add_digest(texts)
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta[MEMBER + "_graph"] = (tuple(texts), part)
    graph.eliminate_dead_code()


def _source(node: fx.Node) -> fx.Node:
    while node.op == "call_function" and node.target in _SAME_ELEMENTS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
