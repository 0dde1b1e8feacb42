"""Which modules have marks, and putting them on and off."""

from __future__ import annotations

import weakref

from torch import nn

from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.compiled.marks import MarkInputs, MarkOutputs

_marked: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[str, bool], Registrations]] = weakref.WeakKeyDictionary()


def marks_of(module: nn.Module) -> tuple[str, bool] | None:
    """The name in the marks of a module and whether gradients are marked; None: it has none."""
    return _marked[module][0] if module in _marked else None


def put_marks(module: nn.Module, name: str, gradients: bool) -> None:
    """Have what the module is given and returns marked wherever it is traced."""
    owned = Registrations()
    owned.add(module.register_forward_pre_hook(MarkInputs(name, gradients=gradients), with_kwargs=True))
    owned.add(module.register_forward_hook(MarkOutputs(name, gradients=gradients), with_kwargs=True))
    _marked[module] = ((name, gradients), owned)


def unmark(module: nn.Module | None) -> None:
    """Take its marks off; harmless where there are none."""
    known = None if module is None else _marked.pop(module, None)
    if known is not None:
        known[1].close()
