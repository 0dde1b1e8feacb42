"""Statistics of a step that is not over yet."""

from __future__ import annotations

from typing import Any

from msmon.collector import Collector
from msmon.config import Config
from msmon.rows import RowReader
from msmon.tables import number_ops
from msmon_io import FINGERPRINT, tag
from msmon_io.memory_writer import table_metrics
from msmon_stats import finalize, fingerprints

Metrics = dict[str, dict[str, Any]]
"""Tag, `"0:fc1.weight/rank0/grad_reduced"`, to statistics by name."""


def current_gradients(hooks: Any, collector: Collector, config: Config, rank: int) -> tuple[Metrics, Metrics] | None:
    """What the optimizer would consume now, and what the reduction over ranks was given.

    Waits for the device.

    Args:
        hooks: the weight hooks of the framework, with `current_gradients()`, `current_scale()` and `reduces`.
        collector: measures, and holds the gradients before the reduction, where the step in flight is recorded.
        config: names the statistics.
        rank: of this process.

    Returns:
        Statistics of reduced and of unreduced gradients; None where no backward has run since the last step.
    """
    present = hooks.current_gradients()
    if not present:
        return None
    handles, matrix = collector.measure_apart([gradient for _, gradient in present], hooks.current_scale())
    present = [entry for entry, handle in zip(present, handles, strict=True) if handle >= 0]
    ops, partials = number_ops(config.ops), matrix[handles[handles >= 0]]
    statistics: list[dict[str, Any]] = [dict(zip(ops, row, strict=True)) for row in finalize(partials, ops).tolist()]
    for (_, gradient), row in zip(present, statistics, strict=True):
        row |= {"shape": str(list(gradient.shape)), "dtype": str(gradient.dtype)}
    if FINGERPRINT in config.ops:
        for row, text in zip(statistics, fingerprints(partials), strict=True):
            row[FINGERPRINT] = text

    def metrics(data_type: str) -> Metrics:
        return {
            tag(weight.vpp_stage, weight.name, None, rank, data_type): {op: values[op] for op in config.ops}
            for (weight, _), values in zip(present, statistics, strict=True)
        }

    # Where ranks reduce, the gradient that stands in the parameter says nothing of what there was before.
    unreduced = _so_far(collector, "grad_unreduced", config, rank) if hooks.reduces else metrics("grad_unreduced")
    return metrics("grad_reduced"), unreduced


def activations_so_far(collector: Collector, config: Config, rank: int) -> tuple[Metrics, Metrics]:
    """Activations and their gradients, as far as the step has come. Waits for the device."""
    return _so_far(collector, "actv", config, rank), _so_far(collector, "actv_grad", config, rank)


def _so_far(collector: Collector, data_type: str, config: Config, rank: int) -> Metrics:
    """The rows of one data type that were recorded in the step in flight."""
    refs, handles, matrix = collector.so_far()
    chosen = [index for index, ref in enumerate(refs) if ref.data_type == data_type]
    rows = RowReader(config.ops).read(tuple(refs[index] for index in chosen), handles[chosen], matrix)
    return {tag: cells for table in rows.tables(0) for tag, cells in table_metrics(table, rank).items()}
