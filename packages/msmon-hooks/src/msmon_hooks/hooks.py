"""What all hook objects have in common."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import Any

from msmon_hooks.guard import Guarded


class Hook:
    """A hook that fails alone, and that pickles and copies to nothing. Subclasses say in `fire` what it does.

    `torch.save(model)` and `copy.deepcopy(model)` take hooks along. A copy must record nothing, and must load
    where msmon is not installed: so what arrives there is a method of the standard library that accepts any
    arguments and returns None.

    Args:
        guard: what goes off when the hook raises; whoever called the hook never sees it.

    Example:
        >>> import copy
        >>> class Fails(Hook):
        ...     def fire(self): return 1 / 0
        >>> guard = Guarded("an example"); hook = Fails(guard)
        >>> hook() is None, guard.enabled
        (True, False)
        >>> copy.deepcopy(hook)("module", "arguments") is None
        True
    """

    seconds = 0.0
    """Spent in all hooks of this process so far, in the threads of the training."""

    def __init__(self, guard: Guarded) -> None:
        self.guard = guard

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As `guard.run` does; hooks run most often of all.
        if self.guard.enabled:
            begun = perf_counter()
            try:
                return self.fire(*args, **kwargs)
            except Exception as error:
                self.guard.fail(error)
            finally:
                Hook.seconds += perf_counter() - begun
        return None

    def fire(self, *args: Any, **kwargs: Any) -> Any:
        """What the hook does; called with what the framework calls hooks of its kind with."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))
