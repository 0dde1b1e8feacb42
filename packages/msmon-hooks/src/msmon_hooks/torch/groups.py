"""Process groups in which ranks hold the same tensors, and which of the ranks writes them."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from torch import distributed


@frozen(kw_only=True)
class Groups:
    """The groups that the training script names, and the ranks that are monitored."""

    data_parallel: Any = None
    """After the reduction all ranks of it hold the same gradients."""
    tensor_parallel: Any = None
    """Parameters that are not split are the same on all ranks of it."""
    monitored: tuple[int, ...] = ()
    """Ranks that have a monitor. Empty: all."""

    def writes_for(self, group: Any) -> bool:
        """Whether this rank is the first monitored one of ``group``; also where there is no group."""
        if group is None:
            return True
        ranks = [rank for rank in group_ranks(group) if not self.monitored or rank in self.monitored]
        return not ranks or distributed.get_rank() == ranks[0]


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a process group, in its order. A one-dimensional device mesh will do.

    Needs no communication.
    """
    if hasattr(group, "get_group"):
        group = group.get_group()
    return list(distributed.get_process_group_ranks(group))
