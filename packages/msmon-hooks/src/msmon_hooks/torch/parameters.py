"""The parameters of a model by plain name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from msmon_hooks.names import plain_name
from msmon_hooks.parameters import Weight, make_weights
from msmon_hooks.torch.wrappers import wrapper_prefix

__all__ = ["Weight", "named_weights"]


def named_weights(models: Sequence[nn.Module]) -> list[Weight]:
    """Every parameter of the model chunks, in the order of `named_parameters()`.

    Example:
        >>> [weight.name for weight in named_weights([nn.Linear(2, 3)])]
        ['weight', 'bias']
    """
    return make_weights(_named_parameters(models))


def _named_parameters(models: Sequence[nn.Module]) -> Iterator[tuple[int, str, nn.Parameter]]:
    for stage, model in enumerate(models):
        prefix = wrapper_prefix(model)
        for long_name, parameter in model.named_parameters(remove_duplicate=False):
            yield stage, plain_name(long_name, prefix), parameter
