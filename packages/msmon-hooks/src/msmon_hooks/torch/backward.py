"""What torch says of a backward that is running."""

from __future__ import annotations

import torch

# Both are private. Without the first, a recomputation looks like a further call of the module; without the second,
# calls of one module in one checkpointed segment may be taken for each other.
_graph_task = getattr(torch._C, "_current_graph_task_id", None)
_sequence_number = getattr(torch.autograd, "_get_sequence_nr", None)


def in_backward() -> bool:
    """Whether autograd is running a backward in this thread: a forward then is a recomputation (checkpointing)."""
    return _graph_task is not None and _graph_task() != -1


def backward_number() -> int:
    """The number of the backward that autograd is running in this thread; -1 where there is none."""
    return _graph_task() if _graph_task is not None else -1


def segment_number() -> int:
    """A number that grows with every node of the graph: it stays the same while a checkpointed segment runs for the
    first time, without gradients, and differs from one segment to the next."""
    return _sequence_number() if _sequence_number is not None else 0
