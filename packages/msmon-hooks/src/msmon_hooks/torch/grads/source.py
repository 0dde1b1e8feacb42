"""What every engine answers: where a parameter's gradient, weight and moments are, before and after the reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.moments import moments
from msmon_hooks.torch.parameters import Weight

OnReady = Callable[..., None]
"""``on_ready(weight, gradient, micro_step=None, scale=None)``; the last two where the engine knows better."""


class GradientSource:
    """The answers of a training without an engine; each engine is a subclass that says what is different.

    Everything that is returned is this rank's own (local) part; no collective may be issued, no tensor gathered,
    no value copied to the host.
    """

    engine = "plain"
    """How ``run.json`` calls the engine."""
    reads_grad_at_step = True
    """Whether, at the optimizer's step, the gradient before the reduction can still be read from the parameter."""
    each_micro_step = True
    """Whether a gradient exists after every micro-step."""

    def __init__(self, models: Sequence[nn.Module], optimizer: Any, *, main_grad: bool = True) -> None:
        self.models = models
        self.optimizer = optimizer
        """The optimizer as the engine's user passed it, unwrapped from accelerate and its like."""
        self.main_grad = main_grad

    @classmethod
    def matches(cls, models: Sequence[nn.Module], optimizer: Any) -> bool:
        """Whether these objects belong to the engine. Looks at them; imports nothing."""
        return True

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call ``on_ready`` whenever the gradient of a parameter is complete on this rank and not yet reduced.

        It is called again with parameters that were frozen at first.
        """
        raise NotImplementedError

    def reduced(self, weight: Weight) -> torch.Tensor | None:
        """The gradient that the optimizer consumes, or None where there is none."""
        main_grad = getattr(weight.parameter, "main_grad", None) if self.main_grad else None
        return main_grad if main_grad is not None else weight.parameter.grad

    def value(self, weight: Weight) -> torch.Tensor | None:
        """The weight that the optimizer updates (a master copy where there is one), or None where this rank has no
        part of it."""
        return weight.parameter.detach()

    def moments(self, weight: Weight) -> dict[str, torch.Tensor]:
        """``exp_avg`` and ``exp_avg_sq`` as they stand now, as far as they exist."""
        return moments(self.optimizer, weight.parameter)

    def writes_reduced(self, weight: Weight) -> bool:
        """Whether this rank is the one that writes the reduced gradient (ranks that hold the same one: the first)."""
        return True

    def scale(self) -> float | torch.Tensor | None:
        """What the gradients at ``reduced`` are still multiplied by (loss scaling), or None."""
        return None
