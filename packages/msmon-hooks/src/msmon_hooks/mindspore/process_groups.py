"""MindSpore's groups of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from mindspore import communication

from msmon_hooks import process_groups
from msmon_hooks.interception import call_after
from msmon_hooks.registrations import Registrations


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


def when_ranks_are_known(then: Callable[[], None], registrations: Registrations) -> None:
    """Call `then` when the processes have been initialized, unless they are; until the registrations are closed."""
    if not getattr(communication.GlobalComm, "INITED", False):
        call_after(communication.init, then, registrations)


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a group, in its order. Needs no communication."""
    return list(communication.get_process_group_ranks(group))
