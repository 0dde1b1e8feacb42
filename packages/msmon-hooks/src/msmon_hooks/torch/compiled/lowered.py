"""Values in a graph that inductor has lowered, and reading them: the part of `interfaces` that knows its objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._inductor import config, ir
from torch._inductor.ops_handler import WrapperHandler
from torch._inductor.scheduler import BaseSchedulerNode, NodeUser, Scheduler
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet


class Lines(ir.ExternKernel):
    """Writes lines of Python into the code of a graph, with references to values in them.

    Args:
        template: what is written, `{}` for the references.
        values: buffers, or views of them.
    """

    def __init__(self, template: str, values: Sequence[Any], device: Any) -> None:
        super().__init__(None, ir.NoneLayout(device=device), list(values))
        self.template = template
        self.name = V.graph.register_buffer(self)
        V.graph.register_operation(self)

    def should_allocate(self) -> bool:
        return False

    def has_side_effects(self) -> bool:
        return True

    def get_free_symbol_uses(self, unbacked_only: bool = False) -> Any:
        return OrderedSet()

    def codegen(self, wrapper: Any) -> None:
        references = ", ".join(value.codegen_reference() for value in self.inputs)  # type: ignore[union-attr]
        wrapper.writeline(self.template.replace("{}", references))


def storage_of(value: Any) -> Any:
    """What a value is stored in, or computed by if it is not."""
    while isinstance(value, ir.TensorBox | ir.BaseView) and not isinstance(value, ir.ReinterpretView):
        value = value.data
    if isinstance(value, ir.ReinterpretView):
        value = value.data
    return value.data if isinstance(value, ir.StorageBox) else value


def readable(value: Any) -> Any:
    """A stored value as an input of `Lines`; None where it cannot be said by sizes and strides."""
    while isinstance(value, ir.MutableBox):
        value = value.data
    if isinstance(value, ir.BaseView) and not isinstance(value, ir.ReinterpretView):
        try:
            value = ir.ExternKernel.convert_to_reinterpret_view(value)
        except NotImplementedError:
            return None
    return value if isinstance(value, ir.Buffer | ir.ReinterpretView) else None


def is_stored(storage: Any) -> bool:
    """Whether a value has a buffer, or will be computed where it is used."""
    return isinstance(storage, ir.Buffer)


def writes_elsewhere(storage: Any) -> bool:
    """Whether the buffer is written over another one."""
    return isinstance(storage.get_output_spec(), ir.MutationLayoutSHOULDREMOVE)


def own_names(value: Any) -> set[str]:
    """The buffer of a value, or those that it is computed of where it has none."""
    storage = storage_of(value)
    return {storage.get_name()} if is_stored(storage) else {str(name) for name in value.get_read_names()}


def reads_of_buffer(graph: Any, name: str) -> set[str] | None:
    """What a buffer is computed of; None where no loop computes it."""
    buffer = graph.name_to_buffer.get(name)
    if not isinstance(buffer, ir.ComputedBuffer) or writes_elsewhere(buffer):
        return None
    if not isinstance(buffer.data, ir.Pointwise | ir.Reduction) or isinstance(buffer.data, ir.Scatter):
        return None
    return {str(read) for read in buffer.get_read_names()}


def uses(scheduler: Scheduler, name: str) -> list[tuple[str | None, bool]]:
    """Which operations use a buffer (None: whoever called the graph), and whether each may write over it."""
    buffer = scheduler.name_to_buf.get(name) or scheduler.name_to_donated_buffer.get(name)
    users = [] if buffer is None else [user for user in buffer.users if not user.is_weak]
    return [
        (user.node.get_name() if isinstance(user.node, BaseSchedulerNode) else None, bool(user.can_inplace))
        for user in users
    ]


def writes(node: BaseSchedulerNode) -> list[tuple[str, set[fx.Node]]]:
    """Which buffers a node writes to that others have made, and the traced nodes whose value they have then."""
    outputs = [buffer for one in node.get_nodes() for buffer in one.get_outputs()]
    return [(name, set(buffer.node.origins)) for buffer in outputs for name in buffer.get_mutations()]


def compute_again(value: Any, chain: Sequence[str], origin: fx.Node) -> tuple[Any, list[Any]]:
    """Loops of their own for a value that is in no memory: its new buffer, and the operations added.

    Args:
        value: what was lowered.
        chain: buffers that have to be computed again first, in order; the value's own, where it has one, is the last.
        origin: the traced node.
    """
    before = len(V.graph.operations)
    names: dict[str, str] = {}
    with ir.IRNode.current_origins(OrderedSet([origin])):
        for name in chain:
            buffer: Any = V.graph.name_to_buffer[name]
            data = copy.copy(buffer.data)
            object.__setattr__(data, "inner_fn", _renamed(buffer.data.inner_fn, dict(names)))
            made = ir.ComputedBuffer(name=None, layout=buffer.layout, data=data)
            made.name = names[name] = V.graph.register_buffer(made)
            V.graph.register_operation(made)
        storage = storage_of(value)
        if is_stored(storage):
            return V.graph.name_to_buffer[names[storage.get_name()]], V.graph.operations[before:]
        computed = ir.Pointwise.create(
            device=value.get_device(),
            dtype=value.get_dtype(),
            inner_fn=_renamed(value.make_loader(), names),
            ranges=value.get_size(),
        )
        computed.realize()
    buffer = storage_of(computed)
    buffer.decide_layout()
    return buffer, V.graph.operations[before:]


class _Renames(WrapperHandler):
    """Reads other buffers than those that a loop names."""

    def __init__(self, inner: Any, names: Mapping[str, str]) -> None:
        super().__init__(inner)
        self._names = names

    def load(self, name: str, index: Any) -> Any:
        return self._inner.load(self._names.get(name, name), index)


def _renamed(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    if not names:
        return function

    def renamed(*index: Any) -> Any:
        with V.set_ops_handler(_Renames(V.get_ops_handler(), names)):
            return function(*index)

    return renamed


def add_lines(template: str, values: Sequence[Any], device: Any, origin: fx.Node) -> Any:
    """Lines of Python as an operation."""
    with V.graph.set_current_node(origin), ir.IRNode.current_origins(OrderedSet([origin])):
        return Lines(template, values, device)


def schedule(scheduler: Scheduler, operation: Any) -> BaseSchedulerNode:
    """A node of the scheduler for an operation that was added when all was decided."""
    node = scheduler.create_scheduler_node(operation)
    node.prune_deps()
    node.min_order = node.max_order = 0
    for buffer in node.get_outputs():
        buffer.set_users([])
        scheduler.name_to_buf[buffer.get_name()] = buffer
    scheduler.name_to_node[node.get_name()] = scheduler.name_to_fused_node[node.get_name()] = node
    for read in node.read_writes.reads:
        # Saved activations too: without a user they would be written over in place before they are read.
        for known in (scheduler.name_to_buf, scheduler.name_to_donated_buffer):
            if read.name in known:
                known[read.name].users.append(NodeUser(node, False, False))
    return node


def records_graphs(graph: Any) -> bool:
    """Whether the graph's kernels are recorded once and replayed."""
    return bool(config.triton.cudagraphs) and any(device != "cpu" for device in graph.device_types)
