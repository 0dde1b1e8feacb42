"""Settings of Adam-like optimizers."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class AdamSettings:
    """How the moments of one parameter were accumulated."""

    betas: tuple[float, float]
    eps: float
    step: Any
    """Updates so far: a number, or a tensor with one element where the optimizer keeps it on the device."""
