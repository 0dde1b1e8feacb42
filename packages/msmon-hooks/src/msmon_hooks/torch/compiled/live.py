"""Marks that a backend has left in its graph and runs: `eager` and `aot_eager`."""

from __future__ import annotations

import threading
from typing import Any

import torch
from attrs import define, field

from msmon_hooks.activation_gradients import INPUT, OUTPUT
from msmon_hooks.events import TensorRef
from msmon_hooks.module_calls import ModuleCall, Site, named_inputs, named_outputs
from msmon_hooks.torch.compiled.graphs import STORED
from msmon_hooks.torch.compiled.leaves import GRADIENT, Leaf
from msmon_hooks.torch.compiled.rows import Region, RowsInside

_SIDES = {"input": INPUT, "output": OUTPUT}


@define(slots=True, eq=False)
class _Call:
    """A call of which marks are being run."""

    call: ModuleCall
    seen: set[str] = field(factory=set)
    inputs: list[tuple[str, tuple[tuple[int, ...], str, bool], int]] = field(factory=list)
    """Name, description and handle: inputs are listed when the module has ended."""


class LiveMarks:
    """Makes rows of tensors as they are in the graph, in the order of the program."""

    def __init__(self, rows: RowsInside) -> None:
        self._rows = rows
        self._here = threading.local()

    def look(self, tensor: torch.Tensor, text: str) -> bool:
        """A mark is run; whether it is one of this monitor."""
        leaf = Leaf.parse(text)
        rows = self._rows
        if leaf.kind == GRADIENT:
            region = rows.region_of_backward()
            if region is None:
                return False
            rows.guard.run(self._gradient, region, leaf, tensor)
            return True
        site = rows.site(leaf.module)
        if site is not None and rows.recording.framework.in_backward():
            # A mark on what is kept for the backward is run there again; or a checkpoint runs the forward again.
            rows.guard.run(self._again)
        elif site is not None:
            rows.guard.run(self._forward, site, leaf, text, tensor)
        return site is not None

    def forget(self) -> None:
        """Nothing more will be read of the step in flight."""
        self._here = threading.local()

    def _again(self) -> None:
        rows = self._rows
        running, number = rows.activations.running(), rows.number_of_forward()
        if running is not None and running.inside and getattr(self._here, "number", None) != number:
            self._here.number = number
            rows.regions[number] = running.inside.pop(0)

    def _region(self, text: str) -> Region:
        """Of the run of a graph that keeps nothing for a backward; a checkpoint runs it again with one."""
        running = self._rows.activations.running()
        known: tuple[Any, Region, set[str]] | None = getattr(self._here, "unrecorded", None)
        if known is None or known[0] is not running or text in known[2]:
            known = self._here.unrecorded = (running, Region(), set())
            if running is not None:
                running.inside.append(known[1])
        known[2].add(text)
        return known[1]

    def _forward(self, site: Site, leaf: Leaf, text: str, tensor: torch.Tensor) -> None:
        rows = self._rows
        recorded = torch.is_grad_enabled()
        if not rows.records(site.vpp_stage, inference=False):
            return
        calls: dict[int, _Call] = self._here.__dict__.setdefault("calls", {})
        entry = calls.get(leaf.call)
        if entry is None or entry.call.site is not site or text in entry.seen:
            entry = calls[leaf.call] = _Call(rows.activations.begin(site))
        entry.seen.add(text)
        self._read(entry, leaf, tensor)
        if rows.activations.gradients is not None:
            self._watch(entry.call, leaf, text, tensor, recorded=recorded)

    def _read(self, entry: _Call, leaf: Leaf, tensor: torch.Tensor) -> None:
        rows, call = self._rows, entry.call
        recording, activations = rows.recording, rows.activations
        name = self._name(call, leaf, leaf.side)
        if name is not None and recording.request.activations:
            shape, dtype, requires_grad = recording.framework.describe(tensor)
            (handle,) = recording.observer.measure([tensor])
            rows.note("actv", call.site, name, STORED)
            entry.inputs.append((name, (shape, dtype, requires_grad or bool(leaf.gradient)), handle))
        if leaf.side == "input":
            return
        if call.end < 0:
            call.end = activations.next_end()
        refs: list[TensorRef] = []
        for listed, description, _ in entry.inputs:
            refs.append(activations.ref(call, listed != name, listed, *description))
        recording.observer.record(refs, [handle for _, _, handle in entry.inputs])
        entry.inputs.clear()

    def _watch(self, call: ModuleCall, leaf: Leaf, text: str, tensor: torch.Tensor, *, recorded: bool) -> None:
        rows = self._rows
        gradients = rows.activations.gradients
        grad, position = _SIDES[leaf.side]
        name = self._name(call, leaf, grad)
        if name is None or gradients is None:
            return
        place = (call, name, (position, leaf.index))
        if tensor.requires_grad:
            gradients.watch(tensor, *place)
            rows.note("actv_grad", call.site, name, STORED)
        elif not recorded and leaf.gradient:
            # Under AOTAutograd the forward is one operator; the marks of gradients are in its backward.
            region = rows.region_of_forward()
            region.gradients[leaf.call, leaf.side, leaf.path] = place
            rows.recording.coverage.expect("actv_grad", name, "no gradient reached it", stage=call.site.vpp_stage)
        elif not recorded:
            self._region(text).gradients[leaf.call, leaf.side, leaf.path] = place

    def _name(self, call: ModuleCall, leaf: Leaf, side: str) -> str | None:
        """What the tensor is called, if it is asked for."""
        paths: list[Any] = [((leaf.path,) if leaf.path else (), leaf.position, None)]
        # Whether it is the only tensor decides about the name.
        paths += [(("-",), leaf.length, None)] * (leaf.tensors - 1)
        if leaf.side == "input":
            named = named_inputs(call.site, call.number, paths)
        else:
            named = named_outputs(call.site, call.number, paths, alone=leaf.length == 1)
        positional = leaf.positional if leaf.side == "input" else None
        chosen = self._rows.activations.chosen(call.site, side, named[:1], leaf.length, positional)
        return chosen[0][0] if chosen else None

    def _gradient(self, region: Region, leaf: Leaf, tensor: torch.Tensor) -> None:
        place = region.gradients.get((leaf.call, leaf.side, leaf.path))
        gradients = self._rows.activations.gradients
        if place is not None and gradients is not None:
            gradients.read([place], tensor)
            self._rows.note("actv_grad", place[0].site, place[1], STORED)
