"""What all hook objects have in common."""

from __future__ import annotations

import contextlib
from typing import Any


class Hook:
    """A hook that pickles and copies to nothing.

    `torch.save(model)` and `copy.deepcopy(model)` take hooks along. A copy must record nothing, and must load
    where msmon is not installed: so what arrives there is a method of the standard library that accepts any
    arguments and returns None.

    Example:
        >>> import copy
        >>> copy.deepcopy(Hook())("module", "arguments") is None
        True
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))
