"""What the hooks ask of a loss scaler."""

from __future__ import annotations

from typing import Any, Protocol

from msmon_hooks.registrations import Registrations


class LossScale(Protocol):
    """By what the losses of the step in flight were multiplied."""

    def attach(self, optimizer: Any, registrations: Registrations) -> None:
        """Begin to watch scalers of losses that this optimizer minimizes; `registrations` end it."""

    def follow(self, optimizer: Any) -> None:
        """Another optimizer minimizes them from now on."""

    def of(self, gradient: Any) -> Any:
        """By what a gradient that a backward computes now is multiplied: a number or a tensor; None: by nothing."""

    def at_step(self) -> Any:
        """By what the gradients are still multiplied that the optimizer's step is given; None: by nothing."""

    def between(self) -> Any:
        """By what the gradients are multiplied that stand in the parameters outside of a step; None: by nothing."""

    def found_inf(self) -> Any:
        """While an optimizer steps that skips updates by itself: a tensor with one number that is greater than 0 if it
        skips this one; else None."""

    def step_ends(self) -> None:
        """The next loss may be one that nobody scales."""
