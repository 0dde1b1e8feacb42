"""Where the marked values of a lowered graph can be read so that no kernel is another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field
from torch import fx

from msmon_hooks.torch.compiled import lowered
from msmon_hooks.torch.compiled.graphs import RECOMPUTED, STORED
from msmon_hooks.torch.compiled.interfaces import MEMBER
from msmon_hooks.torch.compiled.leaves import FORWARD, GRADIENT

GONE = "the compiler has eliminated it, or made it part of another operator"
IN_REGISTERS = "only in the registers of a kernel"
OVERWRITTEN = "overwritten in place by the kernel behind the one that makes it"
ELSEWHERE = "written into the memory of another tensor"
NO_STRIDES = "a view that sizes and strides cannot say"
CPP_WRAPPER = "the program around the kernels is C++ (cpp_wrapper)"
CUDA_GRAPHS = "the graph is recorded and replayed (CUDA graphs)"

_LONGEST = 12
"""No longer chain of buffers is computed again."""

_IMPORT = "from msmon_hooks.torch.compiled.graphs import Graph as MsmonGraph"


@define
class _Read:
    """One value that is read."""

    value: Any
    storage: Any
    origin: fx.Node
    leaves: list[int]
    how: str
    chain: list[str] = field(factory=list)
    """Buffers that have to be computed again before it."""


def place(scheduler: Any, graph: Any, *, recompute: bool) -> None:
    """Add the lines that read the marked values of a graph.

    Args:
        scheduler: inductor's, in which all is decided.
        graph: what was lowered.
        recompute: compute those again that are in no memory.
    """
    nodes = list(graph.graph.nodes)
    texts, part = next((node.meta[MEMBER + "_graph"] for node in nodes if MEMBER + "_graph" in node.meta), ((), 0))
    kind = GRADIENT if graph.is_backward else FORWARD
    texts = [text for text in texts if text.startswith(kind)]
    if not texts:
        return
    placer = _Placer(scheduler, graph, texts, recompute=recompute)
    document = {
        "leaves": texts,
        "part": part,
        "backward": bool(graph.is_backward),
        "inference": bool(graph.is_inference),
    }
    placer.run(vars(graph).get(MEMBER, {}), document)


class _Placer:
    def __init__(self, scheduler: Any, graph: Any, texts: list[str], *, recompute: bool) -> None:
        self.scheduler = scheduler
        self.graph = graph
        self.recompute = recompute
        self.device = next((device for node in scheduler.nodes if (device := node.get_device()) is not None), None)
        self.index = {text: index for index, text in enumerate(texts)}
        self.how = [GONE] * len(texts)
        self.shapes: list[Any] = [None] * len(texts)
        self.dtypes: list[str] = [""] * len(texts)
        self.order = {name: at for at, node in enumerate(scheduler.nodes) for name in node.get_buffer_names()}
        self.inside = {
            name: {one.get_name() for one in node.get_nodes()}
            for node in scheduler.nodes
            for name in node.get_buffer_names()
        }
        self.position = {one.get_name(): at for at, node in enumerate(scheduler.nodes) for one in node.get_nodes()}
        self.traced = {node: index for index, node in enumerate(graph.graph.nodes)}
        self.writes: dict[str, list[tuple[int, int]]] = {}
        """By buffer: behind which node of the scheduler, and which traced one, it has been written to."""
        for at, node in enumerate(scheduler.nodes):
            for name, origins in lowered.writes(node):
                made = max((self.traced.get(origin, -1) for origin in origins), default=-1)
                self.writes.setdefault(name, []).append((at, made))

    def run(self, values: Mapping[fx.Node, Any], document: dict[str, Any]) -> None:
        refused = self._refused()
        reads: dict[int, list[_Read]] = {}
        origin = next(iter(reversed(self.graph.graph.nodes)))
        for node, value in values.items():
            leaves = []
            for text, shape, dtype in node.meta[MEMBER]:
                if text in self.index:
                    leaves.append(self.index[text])
                    self.shapes[self.index[text]] = shape
                    self.dtypes[self.index[text]] = dtype
            if not leaves:
                continue
            found = refused or self._read(node, value, leaves)
            if not isinstance(found, str):
                read, at = found
                reads.setdefault(at, []).append(read)
            for leaf in leaves:
                self.how[leaf] = found if isinstance(found, str) else found[0].how
        self._write(reads, document, origin)

    def _refused(self) -> str:
        if self.graph.cpp_wrapper:
            return CPP_WRAPPER
        return CUDA_GRAPHS if lowered.records_graphs(self.graph) else ""

    def _read(self, node: fx.Node, value: Any, leaves: list[int]) -> tuple[_Read, int] | str:
        """How a value is read and behind which node (-1: before all), or why it is not."""
        storage = lowered.storage_of(value)
        if lowered.is_stored(storage):
            if lowered.writes_elsewhere(storage):
                return ELSEWHERE
            name = storage.get_name()
            at = self._place_of(name, node)
            if isinstance(at, int):
                readable = lowered.readable(value)
                return NO_STRIDES if readable is None else (_Read(readable, storage, node, leaves, STORED), at)
            if at == IN_REGISTERS and name not in self.order:
                return GONE
            if not self.recompute:
                return at
        return self._again(node, value, leaves) if self.recompute else IN_REGISTERS

    def _place_of(self, name: str, node: fx.Node | None = None) -> int | str:
        """Behind which node of the scheduler a buffer can be read (-1: before all), or why it cannot.

        Args:
            name: of the buffer.
            node: for whose value. A buffer that is written to later has several; None: one that is written to is not
                wanted.
        """
        written = self._is_written(name, node)
        if written is None:
            return OVERWRITTEN
        if written:
            return self._end_of_loops(self.writes[name][-1][0])
        at = self.order.get(name)
        if at is None:
            return -1 if name in self.graph.graph_inputs or name in self.graph.constants else IN_REGISTERS
        if self.scheduler.can_buffer_be_removed_through_fusion(name, self.inside[name]):
            return IN_REGISTERS
        at = self._end_of_loops(at)
        return at if self._lasts(name, at, node) else OVERWRITTEN

    def _is_written(self, name: str, node: fx.Node | None) -> bool | None:
        """Whether a value is made of a buffer as it is when all is written to it, or as it was before (so are inputs of
        the graph: what comes out of it is written to them at its end); None: neither, or unknown."""
        writes = self.writes.get(name, [])
        if not writes or (node is None and name in self.graph.graph_inputs):
            return False
        if node is None:
            return None
        before = {made <= self.traced[node] for _, made in writes}
        return before.pop() if len(before) == 1 else None

    def _lasts(self, name: str, at: int, node: fx.Node | None) -> bool:
        """Whether a buffer is still there behind a node, and a read there leaves all kernels as they are: where nobody
        needs a buffer any more, its last user may write its result over it."""
        if self._is_written(name, node):
            return self.writes[name][-1][0] <= at
        if any(position <= at for position, _ in self.writes.get(name, [])):
            return False
        last, in_place = -1, False
        for operation, may_overwrite in lowered.uses(self.scheduler, name):
            position = len(self.scheduler.nodes) if operation is None else self.position[operation]
            if position >= last:
                in_place = may_overwrite or (in_place and position == last)
                last = position
        return last > at or not in_place

    def _end_of_loops(self, at: int) -> int:
        """The C++ backend puts loops that follow one another into one function: read behind the last of them."""
        nodes = self.scheduler.nodes
        if nodes[at].is_extern() or not _on_host(nodes[at]):
            return at
        while at + 1 < len(nodes) and not nodes[at + 1].is_extern() and _on_host(nodes[at + 1]):
            at += 1
        return at

    def _again(self, node: fx.Node, value: Any, leaves: list[int]) -> tuple[_Read, int] | str:
        found = self._chain(lowered.own_names(value), node)
        if isinstance(found, str):
            return found
        chain, sources = found
        at = max((place for place, _ in sources.values()), default=-1)
        if not all(self._lasts(name, at, reader) for name, (_, reader) in sources.items()):
            return OVERWRITTEN
        return _Read(value, lowered.storage_of(value), node, leaves, RECOMPUTED, chain), at

    def _chain(self, names: set[str], node: fx.Node) -> tuple[list[str], dict[str, tuple[int, fx.Node | None]]] | str:
        """What has to be computed again for the value of a node that is made of these buffers, in order, and what that
        is made of that is in memory, with its places."""
        chain: list[str] = []
        sources: dict[str, tuple[int, fx.Node | None]] = {}
        waiting: list[tuple[str, fx.Node | None]] = [(name, node) for name in sorted(names)]
        while waiting:
            name, reader = waiting.pop()
            if name in sources and name in self.writes and sources[name][1] is not reader:
                # One of them may want it as it was before.
                return OVERWRITTEN
            if name in chain or name in sources:
                continue
            at = self._place_of(name, reader)
            if isinstance(at, int):
                sources[name] = at, reader
                continue
            reads = None if name in self.writes else lowered.reads_of_buffer(self.graph, name)
            if reads is None or len(chain) >= _LONGEST:
                return at
            chain.append(name)
            waiting += [(read, None) for read in sorted(reads)]
        # By number: a buffer is made of earlier ones.
        return sorted(chain, key=lambda name: list(self.graph.name_to_buffer).index(name)), sources

    def _write(self, reads: dict[int, list[_Read]], document: dict[str, Any], origin: fx.Node) -> None:
        numbered = [read for at in sorted(reads) for read in reads[at]]
        number = {id(read): index for index, read in enumerate(numbered)}
        document |= {
            "how": self.how,
            "shapes": self.shapes,
            "dtypes": self.dtypes,
            "reads": [read.leaves for read in numbered],
        }
        wrapper = self.graph.wrapper_code
        wrapper.add_import_once(_IMPORT)
        wrapper.header.writeline(f"msmon_graph = MsmonGraph({json.dumps(document)!r})")
        added: dict[int, list[Any]] = {}
        for at in sorted({-1, *reads}):
            group = reads.get(at, [])
            stored = [read for read in group if read.how == STORED]
            again = [read for read in group if read.how != STORED]
            # Lines end the function that the C++ backend puts loops into, so that those that are added have their own.
            operations = [self._lines("begin" if at == -1 else "read", stored, number, origin)]
            for read in again:
                read.value, made = lowered.compute_again(read.value, read.chain, read.origin)
                operations += made
            if again:
                operations.append(self._lines("read", again, number, origin))
            added[at] = [lowered.schedule(self.scheduler, operation) for operation in operations]
        nodes = list(added.get(-1, []))
        for at, node in enumerate(self.scheduler.nodes):
            nodes += [node, *added.get(at, [])]
        self.scheduler.nodes = nodes

    def _lines(self, what: str, reads: list[_Read], number: dict[int, int], origin: fx.Node) -> Any:
        template = f"msmon_graph.{what}({[number[id(read)] for read in reads]}, [{{}}])"
        device = next((read.value.get_device() for read in reads), self.device)
        return lowered.add_lines(template, [read.value for read in reads], device, origin)


def _on_host(node: Any) -> bool:
    device = node.get_device()
    return device is None or device.type == "cpu"
