"""From the values that a compiled graph hands over to rows: whose they are, in which call and micro-step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from attrs import define, field

from msmon_hooks.activation_gradients import INPUT, OUTPUT, Use
from msmon_hooks.module_calls import ModuleCall, Site, named_inputs, named_outputs
from msmon_hooks.modules import ModuleHooks
from msmon_hooks.names import Path
from msmon_hooks.recording import Recording
from msmon_hooks.torch.compiled.graphs import READ, Graph
from msmon_hooks.torch.compiled.leaves import Leaf
from msmon_hooks.training_forwards import TrainingForwards

_SIDES = {"input": INPUT, "output": OUTPUT}
_NO_GRADIENT = "no gradient reached it"


@define(slots=True, eq=False)
class Region:
    """What one run of a forward graph leaves for its backward."""

    calls: dict[int, ModuleCall] = field(factory=dict)
    """By number in the graph."""
    gradients: dict[tuple[int, str, str], Use] = field(factory=dict)
    """By call, side and path: the tensors whose gradients are wanted."""


class RowsInside:
    """Makes rows of what compiled graphs hand over.

    Args:
        recording: the request in force.
        forwards: says which forwards belong to the training.
        activations: has the modules that are asked for, and counts their calls.
        backward_node: the number of the node that autograd runs now, None outside of a backward.
        next_node: the number that the next node gets in this thread.
        entry: stage and name of the module whose call has led to the code that runs, or None.
    """

    def __init__(
        self,
        recording: Recording,
        forwards: TrainingForwards,
        activations: ModuleHooks,
        *,
        backward_node: Callable[[], int | None],
        next_node: Callable[[], int],
        entry: Callable[[], tuple[int, str] | None],
    ) -> None:
        self.guard = recording.guards("activations inside of compiled graphs")
        self.recording = recording
        self.activations = activations
        self.how: dict[tuple[str, int, str], str] = {}
        """How each row is read, by data type, stage and name."""
        self._forwards = forwards
        self._backward_node, self._next_node, self._entry = backward_node, next_node, entry
        self.regions: dict[int, Region] = {}
        """By the number of the node in whose backward each is needed."""
        self._latest = threading.local()
        self._noted: set[tuple[Graph, tuple[int, str] | None]] = set()

    def begin(self, graph: Graph) -> ForwardRun | BackwardRun | None:
        """A graph begins to run; None: nothing of it is recorded here."""
        return self.guard.run(self._begin, graph) if self.recording.clock.sampled else None

    def forget(self) -> None:
        """Nothing more will be read of the step in flight."""
        self.regions.clear()
        self._latest = threading.local()

    def _begin(self, graph: Graph) -> ForwardRun | BackwardRun | None:
        if graph.backward:
            region = self.region_of_backward()
            return None if region is None else BackwardRun(self, graph, region)
        sites = {leaf.call: site for leaf in graph.leaves if (site := self.site(leaf.module)) is not None}
        if not sites:
            # Another monitor's.
            return None
        running = self.activations.running()
        if self.recording.framework.in_backward():
            # A checkpoint runs it again. One that has kept no graph of the first run has its gradients read now.
            if running is not None and running.inside and not graph.inference:
                self.regions[self.number_of_forward()] = running.inside.pop(0)
            return None
        if not self.records(next(iter(sites.values())).vpp_stage, inference=graph.inference):
            return None
        region = Region()
        if graph.part and (latest := getattr(self._latest, "region", None)) is not None:
            # A later part of the same region: its calls go on.
            region = Region(latest.calls, latest.gradients)
        self._latest.region = region
        if not graph.inference:
            self.regions[self.number_of_forward()] = region
        elif running is not None:
            running.inside.append(region)
        return ForwardRun(self, graph, region, sites)

    def records(self, stage: int, *, inference: bool) -> bool:
        """Whether what runs now belongs to the training."""
        # Of a graph that has a backward the forward runs without recording, as one operator.
        with torch.set_grad_enabled(torch.is_grad_enabled() or not inference):
            return self._forwards.recording(stage)

    def region_of_backward(self) -> Region | None:
        """What the forward has left whose backward runs now."""
        return self.regions.get(self._backward_node() or -1)

    def number_of_forward(self) -> int:
        """The number of the node whose forward runs now."""
        return self._next_node() - 1

    def region_of_forward(self) -> Region:
        """Where the forward that runs now leaves what its backward needs."""
        return self.regions.setdefault(self.number_of_forward(), Region())

    def site(self, module: str) -> Site | None:
        """The module that a leaf is of, if it is asked for."""
        if module.startswith("."):
            entry = self._entry()
            return None if entry is None else self.activations.site(entry[0], f"{entry[1]}{module}".removeprefix("."))
        stage, _, name = module.partition(":")
        return self.activations.site(int(stage), name)

    def cannot_read(self, leaf: Leaf) -> None:
        """A tensor inside of a graph is of a class of its own; the leaf has its module's whole name."""
        site = self.site(leaf.module)
        if site is not None:
            name = site.row_name(0, leaf.side, (leaf.path,) if leaf.path else ())
            for data_type in ("actv", "actv_grad"):
                self.note(data_type, site, name, "a tensor of a class of its own, such as DTensor")

    def backward_is_compiled(self) -> None:
        """Nothing is read of the backward that begins: it is compiled as a whole."""
        for region in self.regions.values():
            for call, name, _ in region.gradients.values():
                self.note("actv_grad", call.site, name, "the backward is compiled as a whole (compiled autograd)")

    def is_new(self, graph: Graph) -> bool:
        """Whether it was not said yet how the tensors of a graph are read, where it runs now."""
        key = graph, self._entry()
        if key in self._noted:
            return False
        self._noted.add(key)
        return True

    def note(self, data_type: str, site: Site, name: str, how: str) -> None:
        """A row is read so, or there is none for this reason."""
        if how in READ:
            self.how[data_type, site.vpp_stage, name] = how
        elif (data_type, site.vpp_stage, name) not in self.how:
            self.recording.coverage.explain(data_type, name, f"inside a compiled graph: {how}", stage=site.vpp_stage)


class ForwardRun:
    """A run of a forward graph."""

    def __init__(self, rows: RowsInside, graph: Graph, region: Region, sites: dict[int, Site]) -> None:
        self._rows = rows
        self._graph = graph
        self._region = region
        self._names: dict[int, tuple[ModuleCall, str]] = {}
        self._numbers: dict[int, int] = {}
        self._begin_calls(sites)
        self._name()
        if rows.recording.request.activations:
            self._number()

    def _begin_calls(self, sites: dict[int, Site]) -> None:
        calls, activations = self._region.calls, self._rows.activations
        for number in sorted(sites):
            if number not in calls:
                calls[number] = activations.begin(sites[number])
        for _, number in sorted({(leaf.end, leaf.call) for leaf in self._graph.leaves if leaf.call in sites}):
            if calls[number].end < 0:
                calls[number].end = activations.next_end()

    def _name(self) -> None:
        """Whose each leaf is; of those that are asked for."""
        leaves, rows = self._graph.leaves, self._rows
        sides: dict[tuple[int, str], list[int]] = {}
        for index, leaf in enumerate(leaves):
            if leaf.call in self._region.calls:
                sides.setdefault((leaf.call, leaf.side), []).append(index)
        for (number, side), indices in sides.items():
            call, first = self._region.calls[number], leaves[indices[0]]
            paths: list[tuple[Path, int, Any]] = []
            for index in indices:
                path = leaves[index].path
                paths.append(((path,) if path else (), leaves[index].position, index))
            if side == "input":
                named = named_inputs(call.site, call.number, paths)
            else:
                named = named_outputs(call.site, call.number, paths, alone=first.length == 1)
            positional = first.positional if side == "input" else None
            for name, _, index in rows.activations.chosen(call.site, side, named, first.length, positional):
                self._names[index] = (call, name)
            if rows.activations.gradients is None:
                continue
            grad, position = _SIDES[side]
            wanted = rows.activations.chosen(call.site, grad, named, first.length, positional)
            for at, (name, _, index) in enumerate(wanted):
                self._region.gradients[number, side, leaves[index].path] = (call, name, (position, at))
                if leaves[index].gradient:
                    stage = call.site.vpp_stage
                    rows.recording.coverage.expect("actv_grad", name, _NO_GRADIENT, stage=stage)

    def _number(self) -> None:
        """Rows are listed when a module has ended, its inputs first."""
        leaves, how, new = self._graph.leaves, self._graph.how, self._rows.is_new(self._graph)
        for index in sorted(self._names, key=lambda i: (leaves[i].end, leaves[i].side != "input", i)):
            call, name = self._names[index]
            if new:
                self._rows.note("actv", call.site, name, how[index])
            if how[index] in READ:
                self._numbers[index] = self._rows.recording.clock.next_call_id()

    def read(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        """See `msmon_hooks.torch.compiled.graphs.Run`."""
        self._rows.guard.run(self._read, numbers, tensors)

    def _read(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        graph, recording = self._graph, self._rows.recording
        wanted = []
        for number, tensor in zip(numbers, tensors, strict=True):
            if tensor.requires_grad:
                self._watch(graph.reads[number], tensor)
            indices = [index for index in graph.reads[number] if index in self._numbers]
            if indices:
                wanted.append((indices, tensor))
        if not wanted:
            return
        handles = recording.observer.measure([tensor for _, tensor in wanted])
        refs, of = [], []
        for (indices, tensor), handle in zip(wanted, handles, strict=True):
            for index in indices:
                call, name = self._names[index]
                number, leaf = self._numbers[index], graph.leaves[index]
                requires_grad = bool(leaf.gradient) or tensor.requires_grad
                place = (call.site.vpp_stage, call.micro_step, number, (number,))
                shape, dtype = _shape(graph.shapes[index], tensor), graph.dtypes[index]
                refs.append(recording.refs.ref("actv", name, *place, shape, dtype, leaf.side == "input", requires_grad))
                of.append(handle)
        recording.observer.record(refs, of)

    def _watch(self, indices: Sequence[int], tensor: Any) -> None:
        """An input of the graph: its gradient comes from outside, too."""
        gradients = self._rows.activations.gradients
        if gradients is None:
            return
        for index in indices:
            leaf = self._graph.leaves[index]
            place = self._region.gradients.get((leaf.call, leaf.side, leaf.path))
            if place is not None:
                gradients.watch(tensor, *place)
                self._rows.note("actv_grad", place[0].site, place[1], READ[0])


class BackwardRun:
    """A run of a backward graph."""

    def __init__(self, rows: RowsInside, graph: Graph, region: Region) -> None:
        self._rows = rows
        self._graph = graph
        self._places = [region.gradients.get((leaf.call, leaf.side, leaf.path)) for leaf in graph.leaves]
        for place, how in zip(self._places, graph.how, strict=True):
            if place is not None:
                rows.note("actv_grad", place[0].site, place[1], how)

    def read(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        """See `msmon_hooks.torch.compiled.graphs.Run`."""
        self._rows.guard.run(self._read, numbers, tensors)

    def _read(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        gradients, recording, graph = self._rows.activations.gradients, self._rows.recording, self._graph
        wanted = [(n, t) for n, t in zip(numbers, tensors, strict=True) if any(self._places[i] for i in graph.reads[n])]
        if gradients is None or not wanted:
            return
        handles = recording.observer.measure([tensor for _, tensor in wanted], recording.loss_scale.of(wanted[0][1]))
        refs, of = [], []
        for (number, tensor), handle in zip(wanted, handles, strict=True):
            for index in graph.reads[number]:
                place = self._places[index]
                if place is not None:
                    refs.append(gradients.ref(place, _shape(graph.shapes[index], tensor), graph.dtypes[index]))
                    of.append(handle)
        recording.observer.record(refs, of)


def _shape(known: Sequence[int | None] | None, tensor: Any) -> tuple[int, ...]:
    """The shape of what was marked; what is read may have another order of axes, or be a view of it."""
    if known is None or sum(size is None for size in known) > 1:
        return tuple(tensor.shape)
    rest = prod(size for size in known if size is not None)
    return tuple(tensor.numel() // max(rest, 1) if size is None else size for size in known)
