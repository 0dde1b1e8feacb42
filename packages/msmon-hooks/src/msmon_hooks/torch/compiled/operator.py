"""The operators by which hooks leave marks in a graph that is being traced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx.node import has_side_effect

_library = torch.library.Library("msmon", "FRAGMENT")
_tags = (torch.Tag.pt2_compliant_tag,) if hasattr(torch.Tag, "pt2_compliant_tag") else ()
_library.define("mark(Tensor x, str text) -> ()", tags=_tags)
_library.define("note(str text) -> ()", tags=_tags)

MARK = torch.ops.msmon.mark.default
"""`mark(x, text)`: here is a tensor that somebody wants to see. It does nothing to the tensor."""
NOTE = torch.ops.msmon.note.default
"""`note(text)`: something happens here. None of them is left when the graph is handed to a backend."""


def _note(text: str) -> None:
    """Only graphs that are being traced have notes."""


def _look(x: torch.Tensor, text: str) -> None:
    _eye[0](x, text)


_eye: list[Callable[[torch.Tensor, str], None]] = [lambda x, text: None]


def when_run(look: Callable[[torch.Tensor, str], None]) -> None:
    """What a mark does that a backend has left in its graph and runs: `look(tensor, text)`."""
    _eye[0] = look


_library.impl("mark", _look, "CompositeExplicitAutograd")
_library.impl("mark", lambda x, text: None, "Meta")
_library.impl("mark", torch.library.fallthrough_kernel, "Autograd")
_library.impl("note", _note, "CompositeExplicitAutograd")
for _operator in (MARK, NOTE):
    has_side_effect(_operator)
