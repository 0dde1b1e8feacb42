"""Statistics of torch tensors. The functions are those of :mod:`msmon_stats`, for tensors only."""

from msmon_stats.torch._buffer import PartialBuffer, Transfer
from msmon_stats.torch._math import MATH
from msmon_stats.torch._partial import merge, partial, partial_many, to_host
from msmon_stats.torch._values import unsupported_reason

__all__ = ["MATH", "PartialBuffer", "Transfer", "merge", "partial", "partial_many", "to_host", "unsupported_reason"]
