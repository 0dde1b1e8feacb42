"""Local parts of all ranks to statistics of whole tensors. Needs no framework.

A rank whose engine shards its tensors (FSDP, ZeRO, tensor parallelism, distributed optimizers) writes statistics of the
parts that it holds. Parts merge exactly: minimum, maximum and sums of all parts are those of the whole.
"""

from msmon.merging.errors import MergeError
from msmon.merging.runs import MergeReport, merge_ranks

__all__ = ["MergeError", "MergeReport", "merge_ranks"]
