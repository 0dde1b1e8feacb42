"""Settings of Adam-like optimizers."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class AdamSettings:
    """How the moments of one parameter were accumulated."""

    betas: tuple[Any, Any]
    """Numbers, or tensors with one element where the optimizer keeps them on the device; `step` likewise."""
    eps: float
    step: Any
    """Updates so far."""
