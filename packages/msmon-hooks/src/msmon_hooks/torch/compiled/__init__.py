"""Tensors of modules that run inside of graphs of `torch.compile`."""

from __future__ import annotations

from typing import Any


def inside_compiled(*args: Any) -> Any:
    """See `msmon_hooks.torch.compiled.inside.InsideCompiled`, which is imported where it is asked for alone."""
    from msmon_hooks.torch.compiled.inside import InsideCompiled

    return InsideCompiled(*args)
