"""What a page shows of one data type: a heat map and curves, as binned values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from msmon.reading.binning import Bins, Bits, bins_of, coarsen, worst_of_groups
from msmon.reading.index import Ints, TensorKey


@attrs.frozen(kw_only=True, eq=False)
class TypeSeries:
    """One data type. All arrays hold float32 bits (see `binning`)."""

    data_type: str
    stats: tuple[str, ...]
    steps: Ints
    bins: Bins
    tensors: Sequence[TensorKey]
    """In the order of the model."""
    layers: Sequence[str]
    """One for each tensor; the tensors of a layer stand together."""
    lines: Bits
    """(lines, statistics, tensors, bins): a line for each rank, or for each run."""
    worst: Bits
    """(statistics, tensors, bins): over all lines, or whatever the heat map shows."""
    marks: Sequence[tuple[int, int]] = ()
    """Tensor and position among all steps of what the page marks."""
    micro_steps: int = 1
    """How many micro-steps were combined."""
    interest: Ints
    """Numbers of the tensors, the ones first that should be kept in detail where not all can be."""

    def coarser(self, factor: int) -> TypeSeries:
        """The same with `factor` bins in one."""
        if factor == 1:
            return self
        return attrs.evolve(
            self,
            bins=bins_of(self.steps, factor * self.bins.width),
            lines=coarsen(self.lines, self.stats, factor),
            worst=coarsen(self.worst, self.stats, factor),
        )

    def group_numbers(self) -> tuple[list[str], Ints]:
        """The layers in the order of the model, and for each tensor the number of its layer."""
        numbers: dict[str, int] = {}
        of = np.array([numbers.setdefault(layer, len(numbers)) for layer in self.layers], dtype=np.int64)
        return list(numbers), of

    def group_lines(self) -> Bits:
        """(lines, statistics, layers, bins): the worst tensor of each layer."""
        layers, of = self.group_numbers()
        return np.stack([worst_of_groups(line, self.stats, of, len(layers)) for line in self.lines])


@attrs.frozen(kw_only=True)
class Panel:
    """A part of the page above the heat map: a title, and sentences, facts or a table."""

    title: str
    id: str
    text: Sequence[str] = ()
    lead: str = ""
    """How the first sentence looks: `lead` (a warning), `lead good`, or plain."""
    facts: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    links: Sequence[Mapping[str, object] | None] = ()
    """For each row what a click on it selects, see `link`; empty: nothing."""
    open: bool = True


def link(data_type: str, tensor: TensorKey, step: int, stat: str) -> dict[str, object]:
    """What a click selects."""
    place = {"pp": tensor.pp_stage, "vpp": tensor.vpp_stage, "name": tensor.name}
    return {"type": data_type, **place, "step": step, "stat": stat}
