"""A failure inside the monitor ends the part that failed, never the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

logger = logging.getLogger("msmon")

P = ParamSpec("P")
R = TypeVar("R")


class Guarded:
    """One part of a monitor: it fails alone, is logged once, and is then off.

    Example:
        >>> part = Guarded("weight gradients")
        >>> part.run(lambda: 1)
        1
        >>> part.run(lambda: 1 / 0) is None, part.enabled
        (True, False)
    """

    def __init__(self, name: str, on_failure: Callable[[str, str], None] | None = None) -> None:
        self.name = name
        """Noun phrase for messages and coverage: "activations", "optimizer moments"."""
        self.enabled = True
        self._on_failure = on_failure

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call `function` if the part is on; an exception switches the part off and None is returned.

        `SystemExit` and `KeyboardInterrupt` pass.
        """
        return self.always(function, *args, **kwargs) if self.enabled else None

    def always(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """The same, also while the part is off: for what has to be counted or cleaned up in any case."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.fail(error)
            return None

    def fail(self, error: BaseException) -> None:
        """Switch the part off and say so, once."""
        if not self.enabled:
            return
        self.enabled = False
        reason = f"{type(error).__name__}: {error}"
        logger.error("monitoring of %s is switched off, training goes on: %s", self.name, reason)
        logger.debug("the failure in %s", self.name, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(self.name, reason)


class Guards:
    """The parts of a monitor by name; each is made when it is first asked for.

    Example:
        >>> parts = Guards(lambda name, reason: None)
        >>> parts("weights") is parts("weights"), "activations" in parts
        (True, False)
    """

    def __init__(self, on_failure: Callable[[str, str], None], *, kept: Iterable[Guarded] = ()) -> None:
        self._on_failure = on_failure
        self._parts = {part.name: part for part in kept}

    def __call__(self, name: str, on_failure: Callable[[str, str], None] | None = None) -> Guarded:
        """The part of this name; `on_failure`: what to call when it fails, in place of what all others call."""
        if name not in self._parts:
            self._parts[name] = Guarded(name, on_failure or self._on_failure)
        return self._parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self._parts
