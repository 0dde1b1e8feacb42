"""A failure inside the monitor ends the part that failed, never the training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger("msmon")

P = ParamSpec("P")
R = TypeVar("R")


class Guarded:
    """One part of a monitor: it fails alone, is logged once, and is then off.

    Example:
        >>> guard = Guarded("weight gradients")
        >>> guard.run(lambda: 1)
        1
        >>> guard.run(lambda: 1 / 0) is None, guard.enabled
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
        if not self.enabled:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.fail(error)
            return None

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
    """The guards of a monitor by name; each is made when it is first asked for.

    Example:
        >>> guards = Guards(lambda name, reason: None)
        >>> guards("weights") is guards("weights"), "activations" in guards
        (True, False)
        >>> guards.stop(); guards("weights").enabled
        False
    """

    def __init__(self, on_failure: Callable[[str, str], None]) -> None:
        self._on_failure = on_failure
        self._guards: dict[str, Guarded] = {}

    def __call__(self, name: str, on_failure: Callable[[str, str], None] | None = None) -> Guarded:
        """The guard of this name; `on_failure`: what to call when it fails, in place of what all others call."""
        if name not in self._guards:
            self._guards[name] = Guarded(name, on_failure or self._on_failure)
        return self._guards[name]

    def __contains__(self, name: str) -> bool:
        return name in self._guards

    def stop(self) -> None:
        """Switch all of them off without a word: hooks that still sit in graphs do nothing from now on."""
        for guard in self._guards.values():
            guard.enabled = False
