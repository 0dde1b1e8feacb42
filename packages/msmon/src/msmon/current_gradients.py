"""Statistics of weight gradients as they stand in the middle of a step."""

from __future__ import annotations

from typing import Any

from msmon.config import Config
from msmon.tables import TEXT_OPS, number_ops
from msmon_stats import summarize_many

Metrics = dict[str, dict[str, Any]]
"""Tag, ``"0:fc1.weight/rank0/grad_reduced"``, to statistics by name."""


def current_gradients(hooks: Any, config: Config, rank: int) -> tuple[Metrics, Metrics] | None:
    """What the optimizer would consume now, under the tags of reduced and of unreduced gradients.

    Waits for the device.

    Args:
        hooks: the weight hooks of the framework, with ``current_gradients()``.
        config: names the statistics.
        rank: of this process.

    Returns:
        None where no backward has run since the last step.
    """
    present = hooks.current_gradients()
    if not present:
        return None
    statistics = summarize_many([gradient for _, gradient in present], number_ops(config.ops), config.eps)

    def metrics(data_type: str) -> Metrics:
        return {
            f"{weight.vpp_stage}:{weight.name}/rank{rank}/{data_type}": {
                op: _text(gradient, op) if op in TEXT_OPS else values[op] for op in config.ops
            }
            for (weight, gradient), values in zip(present, statistics, strict=True)
        }

    return metrics("grad_reduced"), metrics("grad_unreduced")


def _text(tensor: Any, op: str) -> str:
    return str(list(tensor.shape)) if op == "shape" else str(tensor.dtype)
