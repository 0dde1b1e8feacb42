"""Hooks that run before those that an engine has set on the same parameter."""

from __future__ import annotations

from typing import Any

from torch import nn

from msmon_hooks.hooks import Hook


def register_first(parameter: nn.Parameter, hook: Hook) -> Any:
    """Like `register_post_accumulate_grad_hook`, but in front of the hooks that are there already.

    DeepSpeed reduces and clears gradients in hooks of this kind, so what comes behind them sees no gradient.

    Example:
        >>> import torch
        >>> class Say(Hook):
        ...     def __init__(self, word): self.word = word
        ...     def __call__(self, parameter): print(self.word)
        >>> weight = nn.Parameter(torch.ones(1))
        >>> _ = weight.register_post_accumulate_grad_hook(Say("theirs"))
        >>> removable = register_first(weight, Say("ours"))
        >>> weight.sum().backward()
        ours
        theirs
        >>> removable.remove()
    """
    removable = parameter.register_post_accumulate_grad_hook(hook)
    hooks = parameter._post_accumulate_grad_hooks
    # Autograd runs through the plain dictionary's order, which OrderedDict.move_to_end leaves as it is.
    others = {key: other for key, other in hooks.items() if key != removable.id}
    for key in others:
        del hooks[key]
    hooks.update(others)
    return removable
