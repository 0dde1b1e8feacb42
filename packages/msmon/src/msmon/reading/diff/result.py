"""What a comparison found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from msmon.reading.index import TensorKey


@attrs.frozen(kw_only=True)
class Difference:
    """One tensor at one step, and the statistic that differs the most there."""

    data_type: str
    tensor: TensorKey
    micro_step: int | None
    rank: int | None
    """None where the ranks were merged."""
    step: int
    stat: str
    a: float
    b: float
    excess: float
    """The difference over the tolerance: above 1 it counts."""

    @property
    def relative(self) -> float:
        """abs(a - b) over the larger of abs(a) and abs(b)."""
        largest = max(abs(self.a), abs(self.b))
        return abs(self.a - self.b) / largest if largest else 0.0

    COLUMNS: ClassVar = ("step", "data type", "tensor", "micro-step", "rank", "statistic", "A", "B")

    def cells(self) -> tuple[object, ...]:
        """What a table of `COLUMNS` and the excess says of it."""
        micro_step = "" if self.micro_step is None else self.micro_step
        rank = "merged" if self.rank is None else self.rank
        numbers = f"{self.a:.6g}", f"{self.b:.6g}", f"{self.excess:.3g}"
        return self.step, self.data_type, self.tensor.label(), micro_step, rank, self.stat, *numbers

    def place(self) -> tuple[object, ...]:
        """What it is about: step, data type, tensor, micro-step, rank."""
        return self.step, self.data_type, self.tensor, self.micro_step, self.rank

    def where(self) -> str:
        """Data type, micro-step and rank.

        >>> Difference(data_type="actv", tensor=TensorKey(0, 0, "fc"), micro_step=1, rank=0, step=3, stat="norm",
        ...            a=1.0, b=2.0, excess=500.0).where()
        'actv, micro-step 1, rank 0'
        """
        parts = [self.data_type]
        if self.micro_step is not None:
            parts.append(f"micro-step {self.micro_step}")
        return ", ".join([*parts, "ranks merged" if self.rank is None else f"rank {self.rank}"])


@attrs.frozen(kw_only=True)
class OneSided:
    """Something that only one of the runs has."""

    data_type: str
    what: str
    only_in: str
    """`A` or `B`."""


@attrs.frozen(kw_only=True)
class DiffResult:
    """The outcome of `diff_runs`."""

    first: Sequence[Difference]
    """All tensors that differ at the first step with a difference, in the order of execution."""
    onset: Difference | None
    """Where the runs first differ by anything, be it within the tolerance. On one machine it is often the cause."""
    worst: Sequence[Difference]
    """For each data type and tensor that differs the place of its largest excess, the largest first."""
    one_sided: Sequence[OneSided]
    compared_tensors: int
    """Data types and tensors."""
    compared_values: int
    different_values: int
    steps: tuple[int, int, int]
    """First, last and number of the steps that both runs have."""
    notes: Sequence[str]

    @property
    def equal(self) -> bool:
        """No value differs beyond the tolerance and no tensor is on one side only."""
        return not self.worst and not self.one_sided
