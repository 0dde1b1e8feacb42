"""PyTorch's process groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from torch import distributed

from msmon_hooks import process_groups
from msmon_hooks.interception import call_after
from msmon_hooks.registrations import Registrations


@frozen(kw_only=True)
class ProcessGroups(process_groups.ProcessGroups):
    """See `msmon_hooks.process_groups.ProcessGroups`; a group is a process group or a one-dimensional device mesh."""

    def ranks(self, group: Any) -> Sequence[int]:
        """Global ranks of a group, in its order."""
        return group_ranks(group)

    def rank(self) -> int:
        """Global rank of this process."""
        return distributed.get_rank()


def is_distributed() -> bool:
    """Whether several processes train and know of each other."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def when_ranks_are_known(then: Callable[[], None], registrations: Registrations) -> None:
    """Call `then` when the process group was made, unless there is one; until the registrations are closed."""
    if distributed.is_available() and not distributed.is_initialized():
        call_after(distributed.init_process_group, then, registrations)


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a process group, in its order. A one-dimensional device mesh will do.

    Needs no communication.
    """
    if hasattr(group, "get_group"):
        group = group.get_group()
    return list(distributed.get_process_group_ranks(group))
