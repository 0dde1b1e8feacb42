"""Statistics of MindSpore tensors. The functions are those of :mod:`msmon_stats`, for tensors only."""

from msmon_stats.mindspore._buffer import PartialBuffer, Transfer
from msmon_stats.mindspore._math import MATH
from msmon_stats.mindspore._partial import merge, partial, partial_many, to_host
from msmon_stats.mindspore._values import unsupported_reason

__all__ = ["MATH", "PartialBuffer", "Transfer", "merge", "partial", "partial_many", "to_host", "unsupported_reason"]
