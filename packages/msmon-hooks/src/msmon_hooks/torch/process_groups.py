"""PyTorch's process groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from torch import distributed

from msmon_hooks import process_groups


@frozen(kw_only=True)
class ProcessGroups(process_groups.ProcessGroups):
    """See `msmon_hooks.process_groups.ProcessGroups`; a group is a process group or a one-dimensional device mesh."""

    def ranks(self, group: Any) -> Sequence[int]:
        """Global ranks of a group, in its order."""
        return group_ranks(group)

    def rank(self) -> int:
        """Global rank of this process."""
        return distributed.get_rank()


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a process group, in its order. A one-dimensional device mesh will do.

    Needs no communication.
    """
    if hasattr(group, "get_group"):
        group = group.get_group()
    return list(distributed.get_process_group_ranks(group))
