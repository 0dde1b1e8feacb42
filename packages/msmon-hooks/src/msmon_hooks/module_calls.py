"""Calls of modules: what is remembered of one, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from msmon_hooks.names import Path, elements, leaf_name, tensor_leaves
from msmon_hooks.targets import Elements, Sides

IsTensor = Callable[[object], bool]

Leaf = tuple[str, int, Any]
"""Name of the row, position of the element among the inputs or outputs, tensor."""


@define(slots=True, eq=False)
class Site:
    """One monitored module, and what is remembered of it between calls."""

    name: str
    """What rows carry."""
    vpp_stage: int
    sides: Sides
    plain_input: bool | None = None
    """Whether positional input 0 was the only tensor at the first recorded call, and so has no suffix."""
    step: int = -1
    micro_step: int = -1
    calls: int = 0
    """Calls in `micro_step`."""
    pending: list[ModuleCall] = field(factory=list)
    """Calls that ran without gradients inside the training: where that was a checkpoint, a recomputation follows."""
    called: bool = False
    unselective: bool = field(init=False)
    """Everything is monitored, every side and element."""
    mismatched: set[str] = field(factory=set)
    """Sides that had another number of elements than was said, so that it is reported once."""
    names: dict[tuple[int, str, Path], str] = field(factory=dict)

    @unselective.default
    def _is_unselective(self) -> bool:
        return not self.sides.elements

    def row_name(self, number: int, side: str, path: Path) -> str:
        """Name of the tensor at `path` in call `number` of the micro-step."""
        name = self.names.get((number, side, path))
        if name is None:
            base = self.name if number == 0 else f"{self.name}@{number}"
            name = self.names[number, side, path] = leaf_name(f"{base}.{side}", path)
        return name


@define(slots=True, eq=False)
class ModuleCall:
    """One call of a module in one micro-step."""

    site: Site
    step: int
    micro_step: int
    number: int
    """0 for the first call in the micro-step; the others are called `name@number`."""
    parent: ModuleCall | None
    """The call that this one is nested in."""
    segment: int = 0
    """Equal for calls of one checkpointed segment."""
    inside: list[Any] = field(factory=list)
    """What ran in it as compiled code, where that is looked into."""
    end: int = -1
    """Position in the order in which modules end their forward; -1 while the call is open."""
    inputs: Sequence[tuple[str, tuple[tuple[int, ...], str, bool]]] = ()
    """Name and description of each input that is listed, and the handles beside them."""
    handles: Sequence[int] = ()
    watched: frozenset[str] = frozenset()
    """Names whose gradient is read although the call ran without gradients: tensors from outside the checkpoint."""


def input_leaves(
    site: Site, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_tensor: IsTensor
) -> list[Leaf]:
    """The tensors that a module is called with: positional ones by index, the others by keyword."""
    if len(args) == 1 and not kwargs and site.plain_input is not False and is_tensor(args[0]):
        site.plain_input = True
        return [(site.row_name(number, "input", ()), 0, args[0])]
    found: list[tuple[Path, int, Any]] = []
    for position, value in enumerate(args):
        found += [(path, position, tensor) for path, tensor in tensor_leaves(value, is_tensor, (str(position),))]
    for position, (key, value) in enumerate(kwargs.items(), len(args)):
        found += [(path, position, tensor) for path, tensor in tensor_leaves(value, is_tensor, (key,))]
    return named_inputs(site, number, found)


def named_inputs(site: Site, number: int, found: list[tuple[Path, int, Any]]) -> list[Leaf]:
    """Names for tensors that a module is called with; `found`: path, position and tensor of each.

    The only tensor, where it is the first positional input, has no suffix, and keeps that name in later calls.
    """
    if site.plain_input is None and found:
        site.plain_input = len(found) == 1 and found[0][0] == ("0",)
    if site.plain_input and found and found[0][0] == ("0",):
        found[0] = ((), 0, found[0][2])
    return [(site.row_name(number, "input", path), position, tensor) for path, position, tensor in found]


def output_leaves(site: Site, number: int, output: Any, is_tensor: IsTensor) -> list[Leaf]:
    """The tensors that a module returns. A tensor, and a tuple of one tensor, have no suffix."""
    if is_tensor(output):
        return [(site.row_name(number, "output", ()), 0, output)]
    parts = elements(output) or []
    positions = {key: position for position, (key, _) in enumerate(parts)}
    found = [(path, positions[path[0]], tensor) for path, tensor in tensor_leaves(output, is_tensor)]
    return named_outputs(site, number, found, alone=isinstance(output, tuple | list) and len(parts) == 1)


def named_outputs(site: Site, number: int, found: list[tuple[Path, int, Any]], *, alone: bool) -> list[Leaf]:
    """Names for tensors that a module returns, in a container; `alone`: in a sequence of one element."""
    if alone and [path for path, _, _ in found] == [("0",)]:
        found = [((), 0, found[0][2])]
    return [(site.row_name(number, "output", path), position, tensor) for path, position, tensor in found]


def selected(wanted: Elements, leaves: list[Leaf], length: int, positional: int | None = None) -> list[Leaf] | None:
    """The leaves that are meant, or None where the number of elements is another one.

    Args:
        wanted: which elements.
        leaves: all leaves.
        length: how many elements there are.
        positional: how many of the inputs are positional. `wanted` may count these alone, or the keywords too.
    """
    if wanted.length is not None and wanted.length not in (length, positional):
        return None
    if wanted.index is not None:
        return [leaf for leaf in leaves if leaf[1] == wanted.index]
    if wanted.length is None or wanted.length == length:
        return leaves
    return [leaf for leaf in leaves if leaf[1] < wanted.length]


def element_count(output: Any, is_tensor: IsTensor) -> int:
    """How many elements an output has; a bare tensor counts as one."""
    return 1 if is_tensor(output) else len(elements(output) or (output,))
