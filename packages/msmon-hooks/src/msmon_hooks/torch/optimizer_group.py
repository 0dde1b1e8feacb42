"""Several optimizers that train one model together: Muon with AdamW, the two of a GAN."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any


class OptimizerGroup:
    """Stands for all of them where one optimizer is asked for.

    Example:
        >>> import torch
        >>> first, second = (torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=lr) for lr in (0.1, 0.2))
        >>> [group["lr"] for group in OptimizerGroup([first, second]).param_groups]
        [0.1, 0.2]
    """

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[Any]:
        """Those of all."""
        return list(chain.from_iterable(getattr(one, "param_groups", ()) for one in self.optimizers))


def members(optimizer: Any) -> list[Any]:
    """The optimizers that an optimizer stands for; none for None."""
    if isinstance(optimizer, OptimizerGroup):
        return optimizer.optimizers
    return [] if optimizer is None else [optimizer]
