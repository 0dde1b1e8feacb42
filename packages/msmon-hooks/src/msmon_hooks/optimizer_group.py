"""Several optimizers that train one model together: Muon with AdamW, the two of a GAN."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any


class OptimizerGroup:
    """Stands for all of them where one optimizer is asked for.

    Example:
        >>> class Optimizer:
        ...     def __init__(self, lr): self.param_groups = [{"lr": lr}]
        >>> [group["lr"] for group in OptimizerGroup([Optimizer(0.1), Optimizer(0.2)]).param_groups]
        [0.1, 0.2]
    """

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[Any]:
        """Those of all."""
        return list(chain.from_iterable(getattr(one, "param_groups", ()) for one in self.optimizers))


def joined(optimizers: Sequence[Any]) -> Any:
    """One object for all of them: the optimizer itself where there is only one."""
    return optimizers[0] if len(optimizers) == 1 else OptimizerGroup(optimizers)


def given_optimizer(optimizer: Any) -> Any:
    """What a script passed: one, None, or a list of several, which becomes an `OptimizerGroup`."""
    return joined(optimizer) if isinstance(optimizer, list | tuple) else optimizer


def members(optimizer: Any) -> list[Any]:
    """The optimizers that an optimizer stands for; none for None."""
    if isinstance(optimizer, OptimizerGroup):
        return optimizer.optimizers
    return [] if optimizer is None else [optimizer]
