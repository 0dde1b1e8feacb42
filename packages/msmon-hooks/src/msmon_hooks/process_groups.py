"""Process groups in which ranks hold the same tensors, and which of the ranks writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class ProcessGroups:
    """The groups that the training script names, and the ranks that are monitored. A framework says what a group is."""

    data_parallel: Any = None
    """After the reduction all ranks of it hold the same gradients."""
    tensor_parallel: Any = None
    """Parameters that are not split are the same on all ranks of it."""
    monitored: tuple[int, ...] = ()
    """Ranks that have a monitor. Empty: all."""

    def writes_for(self, group: Any) -> bool:
        """Whether this rank is the first monitored one of `group`; also where there is no group."""
        if group is None:
            return True
        ranks = [rank for rank in self.ranks(group) if not self.monitored or rank in self.monitored]
        return not ranks or self.rank() == ranks[0]

    def ranks(self, group: Any) -> Sequence[int]:
        """Global ranks of a group, in its order; without any communication."""
        raise NotImplementedError

    def rank(self) -> int:
        """Global rank of this process."""
        raise NotImplementedError
