"""MindSpore's groups of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from mindspore import communication

from msmon_hooks import process_groups


@frozen(kw_only=True)
class ProcessGroups(process_groups.ProcessGroups):
    """See `msmon_hooks.process_groups.ProcessGroups`; a group is the name under which it was made."""

    def ranks(self, group: Any) -> Sequence[int]:
        """Global ranks of a group, in its order."""
        return group_ranks(group)

    def rank(self) -> int:
        """Global rank of this process."""
        return int(communication.get_rank())


def is_distributed() -> bool:
    """Whether several processes train and know of each other.

    Example:
        >>> is_distributed()
        False
    """
    initialized = getattr(communication.GlobalComm, "INITED", False)
    return bool(initialized) and int(communication.get_group_size()) > 1


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a group, in its order. Needs no communication."""
    return list(communication.get_process_group_ranks(group))
