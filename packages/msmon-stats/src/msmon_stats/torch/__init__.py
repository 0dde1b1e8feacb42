"""Statistics of torch tensors. The functions are those of `msmon_stats`, for tensors only."""

from msmon_stats.torch.buffer import PartialBuffer, Transfer
from msmon_stats.torch.math import MATH
from msmon_stats.torch.partials import chosen_kernels, merge, partial, partial_many, to_host
from msmon_stats.torch.values import unsupported_reason

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
