"""Passes through a model that are no forwards of the training: traced, transformed, without values, counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def _find_is_compiling() -> Callable[[], bool]:
    if hasattr(torch.compiler, "is_compiling"):
        return torch.compiler.is_compiling
    from torch._dynamo import is_compiling

    return is_compiling


is_compiling = _find_is_compiling()
"""Whether torch.compile is tracing the code that asks. It is a constant for the tracer: the code behind it leaves
nothing in the compiled graph, no break, no guard."""

_transformations = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_tracing = torch._C._get_tracing_state
_modes = torch._C._len_torch_dispatch_stack
# Modes under which operators compute no values, write a graph down, or are counted. Others (selective checkpointing,
# logging) run in the midst of a training.
_APART = frozenset(
    {
        "FakeTensorMode",
        "ProxyTorchDispatchMode",
        "FunctionalTensorMode",
        "FlopCounterMode",
        "_FlopCounterMode",
    }
)


def is_apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module that is called with these arguments now is called beside the training: by `torch.jit.trace`,
    `torch.fx`, a transformation of `torch.func` or forward-mode differentiation, for shapes alone, by a FLOP counter.

    Example:
        >>> is_apart((torch.ones(2),), {}), is_apart((torch.ones(2, device="meta"),), {})
        (False, True)
    """
    if _transformations() is not None or _tracing() is not None:
        return True
    if getattr(sys.modules.get("torch.fx._symbolic_trace"), "_is_fx_tracing_flag", False):
        return True
    if _modes() and any(type(mode).__name__ in _APART for mode in _get_current_dispatch_mode_stack()):
        return True
    if getattr(sys.modules.get("torch.autograd.forward_ad"), "_current_level", -1) >= 0:
        return True
    # A loop: a generator costs two calls more, at each module.
    for value in args:
        if isinstance(value, torch.Tensor) and value.is_meta:
            return True
    return bool(kwargs) and any(isinstance(value, torch.Tensor) and value.is_meta for value in kwargs.values())
