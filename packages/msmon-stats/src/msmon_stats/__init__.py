"""Statistics of tensors on their own device, in one pass over memory."""

from msmon_stats.api import merge, partial, partial_many, summarize, summarize_many, unsupported_reason
from msmon_stats.choice import KERNELS
from msmon_stats.errors import UnsupportedTensorError
from msmon_stats.features import (
    adam_histograms,
    adam_update,
    attention_features,
    histogram,
    linear_features,
    router_entropy,
    router_similarity,
    sign_agreement,
)
from msmon_stats.fields import FIELDS, OPS
from msmon_stats.finalizing import finalize
from msmon_stats.fingerprint import fingerprints

__version__ = "0.1.0"

__all__ = [
    "FIELDS",
    "KERNELS",
    "OPS",
    "UnsupportedTensorError",
    "adam_histograms",
    "adam_update",
    "attention_features",
    "finalize",
    "fingerprints",
    "histogram",
    "linear_features",
    "merge",
    "partial",
    "partial_many",
    "router_entropy",
    "router_similarity",
    "sign_agreement",
    "summarize",
    "summarize_many",
    "unsupported_reason",
]
