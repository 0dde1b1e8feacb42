"""Statistics of tensors on their own device, in one pass over memory."""

from msmon_stats._api import merge, partial, partial_many, summarize, summarize_many, unsupported_reason
from msmon_stats._errors import UnsupportedTensorError
from msmon_stats._fields import FIELDS, OPS
from msmon_stats._finalize import finalize

__version__ = "0.1.0"

__all__ = [
    "FIELDS",
    "OPS",
    "UnsupportedTensorError",
    "finalize",
    "merge",
    "partial",
    "partial_many",
    "summarize",
    "summarize_many",
    "unsupported_reason",
]
