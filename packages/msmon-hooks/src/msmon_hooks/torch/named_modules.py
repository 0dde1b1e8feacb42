"""The modules of a model by plain name."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from msmon_hooks.names import plain_name
from msmon_hooks.torch.wrappers import is_a, wrapper_prefix


def named_modules(models: Sequence[nn.Module]) -> dict[tuple[int, str], nn.Module]:
    """Stage and plain name to module.

    A wrapper and what it wraps share a name: the inner one is taken, but the outer one of what `torch.compile`
    wraps, since the inner one runs where no hook sees it.

    Example:
        >>> list(named_modules([nn.Sequential(nn.Linear(2, 2))]))
        [(0, ''), (0, '0')]
    """
    found: dict[tuple[int, str], nn.Module] = {}
    for stage, model in enumerate(models):
        prefix = wrapper_prefix(model)
        for long_name, module in model.named_modules():
            key = (stage, plain_name(long_name, prefix))
            if key not in found or not is_a(found[key], "OptimizedModule"):
                found[key] = module
    return found
