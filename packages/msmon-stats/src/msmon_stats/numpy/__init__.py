"""Statistics of numpy arrays. The functions are those of `msmon_stats`, for arrays only."""

from msmon_stats.numpy.buffer import PartialBuffer, Transfer
from msmon_stats.numpy.math import MATH
from msmon_stats.numpy.partials import merge, partial, partial_many, to_host, usable_kernels
from msmon_stats.numpy.values import unsupported_reason

__all__ = [
    "MATH",
    "PartialBuffer",
    "Transfer",
    "merge",
    "partial",
    "partial_many",
    "to_host",
    "unsupported_reason",
    "usable_kernels",
]
