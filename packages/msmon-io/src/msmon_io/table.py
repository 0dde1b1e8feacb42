"""Statistics of one data type at one step: what every writer is handed and the readers hand back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import field, frozen

from msmon_io.tags import tag


class SupportsToList(Protocol):
    """An array of any library: numpy, torch and MindSpore arrays all have `tolist`."""

    def tolist(self) -> Any: ...


Values = SupportsToList | Sequence[Sequence[float]]

FINGERPRINT = "fingerprint"
TEXT_OPS = ("shape", "dtype", FINGERPRINT)
"""Columns that hold text; everything else is a number. Fingerprints are other ones at every step."""


@frozen(kw_only=True, eq=False)
class Table:
    """The rows of one data type at one step, one row a tensor (and micro-step).

    >>> table = Table(data_type="grad_reduced", step=3, names=["fc1.weight"], vpp_stages=[0],
    ...               ops=["norm", "dtype"], values=[[0.5]], text={"dtype": ["torch.float32"]})
    >>> len(table), table.number_ops, table.tags(rank=0)
    (1, ['norm'], ['0:fc1.weight/rank0/grad_reduced'])
    """

    data_type: str
    """`actv`, `grad_reduced`, ...: it becomes a part of file names and tags."""
    step: int
    names: Sequence[str]
    """The tensors' names, one a row. Any text: the writers make it harmless."""
    vpp_stages: Sequence[int]
    """The virtual pipeline stage of each row."""
    micro_steps: Sequence[int] | None = None
    """The micro-step of each row, or None where the data type has none."""
    ops: Sequence[str]
    """The columns in the order in which they are written, text columns included."""
    values: Values
    """float64 of shape (rows, number columns), in the order of the number columns of `ops`."""
    text: Mapping[str, Sequence[str]] = field(factory=dict)
    """The text columns (those of `TEXT_OPS`): name -> one text a row."""

    def __attrs_post_init__(self) -> None:
        rows = len(self.names)
        columns: list[tuple[str, Sequence[object]]] = [("vpp_stages", self.vpp_stages), *self.text.items()]
        if self.micro_steps is not None:
            columns.append(("micro_steps", self.micro_steps))
        for name, column in columns:
            if len(column) != rows:
                raise ValueError(f"{self.data_type}: {name} has {len(column)} entries for {rows} names")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def number_ops(self) -> list[str]:
        """The names of the number columns, in order."""
        return [op for op in self.ops if op not in self.text]

    def array(self) -> Any | None:
        """`values` if it is a numpy array, else None. numpy is not imported for it.

        Raises:
            ValueError: it has another shape than (rows, number columns).
        """
        values: Any = self.values
        if not type(values).__module__.startswith("numpy"):
            return None
        shape = (len(self), len(self.number_ops))
        if values.shape != shape:
            raise ValueError(f"{self.data_type}: values of shape {values.shape}, not {shape}")
        return values

    def rows(self) -> list[list[float]]:
        """The numbers as nested lists of Python numbers, one inner list a row."""
        values = self.values
        rows: list[list[float]] = values.tolist() if hasattr(values, "tolist") else [list(row) for row in values]
        width = len(self.ops) - len(self.text)
        if len(rows) != len(self.names) or (rows and len(rows[0]) != width):
            shape = (len(rows), len(rows[0]) if rows else 0)
            raise ValueError(f"{self.data_type}: values of shape {shape} for {len(self.names)} names, {width} columns")
        return rows

    def tags(self, rank: int) -> list[str]:
        """The tag of each row, see `msmon_io.tag`."""
        micro_steps = [None] * len(self) if self.micro_steps is None else self.micro_steps
        return [
            tag(stage, name, micro, rank, self.data_type)
            for stage, name, micro in zip(self.vpp_stages, self.names, micro_steps, strict=True)
        ]
