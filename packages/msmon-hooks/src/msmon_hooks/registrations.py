"""Everything that a monitor puts onto other people's objects, and takes off again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

_ABSENT = object()
# Set on a replacement that was given back while a later patch lay over it: itself, and what was there before.
_BURIED = "_msmon_buried"


class Removable(Protocol):
    """What frameworks return of a hook that they took."""

    def remove(self) -> None:
        """Take the hook off."""


class Registrations:
    """Owns hooks and patched attributes; `close` undoes all of them, last one first.

    Example:
        >>> class Loop:
        ...     def step(self): return "plain"
        >>> loop = Loop()
        >>> with Registrations() as owned:
        ...     owned.patch(loop, "step", lambda original: lambda: "seen " + original())
        ...     loop.step()
        'seen plain'
        >>> loop.step(), "step" in vars(loop)
        ('plain', False)
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._undo)

    def __enter__(self) -> Registrations:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def add(self, removable: Removable) -> None:
        """Own a hook."""
        self._undo.append(removable.remove)

    def callback(self, undo: Callable[[], None]) -> None:
        """Call `undo` at `close`."""
        self._undo.append(undo)

    def patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)` until `close`. `owner` is an object or a class.

        Where somebody patched over the replacement meanwhile, it stays in place and must do nothing but call the
        original: taking it out from under the later patch would break that one. Of several patches by this class
        the original comes back when the last one is closed, in whatever order.
        """
        before = vars(owner).get(name, _ABSENT)
        replacement = make(getattr(owner, name))
        setattr(owner, name, replacement)

        def restore() -> None:
            if vars(owner).get(name, _ABSENT) is not replacement:
                setattr(replacement, _BURIED, (replacement, before))
                return
            target = before
            while (buried := getattr(target, _BURIED, None)) is not None and buried[0] is target:
                target = buried[1]
            if target is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, target)

        self._undo.append(restore)

    def close(self) -> None:
        """Undo everything, also when one of the steps raises; harmless when called again."""
        undo, self._undo = self._undo, []
        with contextlib.ExitStack() as stack:
            for step in undo:
                stack.callback(step)
