"""Statistics of MindSpore tensors. The functions are those of `msmon_stats`, for tensors only."""

from msmon_stats.mindspore.buffer import PartialBuffer, Transfer
from msmon_stats.mindspore.math import MATH
from msmon_stats.mindspore.partials import chosen_kernels, merge, partial, partial_many, to_host
from msmon_stats.mindspore.values import unsupported_reason

__all__ = [
    "MATH",
    "PartialBuffer",
    "Transfer",
    "chosen_kernels",
    "merge",
    "partial",
    "partial_many",
    "to_host",
    "unsupported_reason",
]
