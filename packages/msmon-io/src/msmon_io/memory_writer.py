"""The newest step's statistics as dictionaries, nothing on disk."""

from __future__ import annotations

from msmon_io.table import Table


class MemoryWriter:
    """Keeps the newest step of each data type, for programs that read the statistics themselves.

    >>> writer = MemoryWriter(rank=0)
    >>> writer.write(Table(data_type="grad_reduced", step=0, names=["fc1.weight"], vpp_stages=[0],
    ...                    ops=["norm"], values=[[0.12]]))
    >>> writer.metrics("grad_reduced")
    {'0:fc1.weight/rank0/grad_reduced': {'norm': 0.12}}
    """

    def __init__(self, *, rank: int = 0) -> None:
        self.rank = rank
        self._steps: dict[str, int] = {}
        self._metrics: dict[str, dict[str, dict[str, float | str]]] = {}

    def write(self, table: Table) -> None:
        """Take the rows of one data type at one step; an older step of the data type is forgotten."""
        if self._steps.get(table.data_type) != table.step:
            self._steps[table.data_type] = table.step
            self._metrics[table.data_type] = {}
        self._metrics[table.data_type].update(table_metrics(table, self.rank))

    def metrics(self, data_type: str) -> dict[str, dict[str, float | str]]:
        """Tag -> {statistic: value} of the newest step; empty where there was none.

        For tags see `msmon_io.tag`.
        """
        return dict(self._metrics.get(data_type, {}))

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do; the newest step stays readable."""


def table_metrics(table: Table, rank: int) -> dict[str, dict[str, float | str]]:
    """The table as tag -> {statistic: value}; the statistics in the order of `table.ops`."""
    number_ops = table.number_ops
    metrics: dict[str, dict[str, float | str]] = {}
    for index, (tag, row) in enumerate(zip(table.tags(rank), table.rows(), strict=True)):
        cells: dict[str, float | str] = dict(zip(number_ops, row, strict=True))
        if table.text:
            cells = {op: cells[op] if op in cells else table.text[op][index] for op in table.ops}
        metrics[tag] = cells
    return metrics
