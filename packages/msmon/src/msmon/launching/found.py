"""What trains, as far as it was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import Factory, frozen


@frozen(kw_only=True)
class Found:
    """A model and what updates it."""

    models: Sequence[Any]
    """Usually one; the chunks of a virtual pipeline, or modules that an optimizer updates together."""
    optimizers: Sequence[Any]
    """One; several that update different parts."""
    engine: str | None = None
    """The engine that has its own optimizer around the framework's."""
    grad_acc_steps: int | None = None
    """As far as the engine says it."""
    process_group: Any = None
    groups: dict[str, Any] = Factory(dict)
    """`dp_group` and `tp_group`, where the engine has them."""
