"""The answers that most of PyTorch's engines share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import distributed, nn

from msmon_hooks import gradients
from msmon_hooks.events import Shard
from msmon_hooks.gradients import OnReady
from msmon_hooks.layout import ALONE, Layout
from msmon_hooks.optimizer_steps import OptimizerSteps
from msmon_hooks.parameter_state import STATE, ParameterState
from msmon_hooks.parameters import Weight
from msmon_hooks.registrations import Registrations
from msmon_hooks.torch.grads.accumulated import Accumulated
from msmon_hooks.torch.grads.first_hook import register_first
from msmon_hooks.torch.mesh_shards import mesh_shard
from msmon_hooks.torch.moments import StateReader
from msmon_hooks.torch.nested_optimizers import param_groups
from msmon_hooks.torch.parameters import named_weights
from msmon_hooks.torch.process_groups import is_distributed
from msmon_hooks.torch.weight_passes import WeightPass, after_each
from msmon_hooks.torch.zeroed_gradients import ZeroedGradients

__all__ = ["UNSEEN", "GradientSource", "OnReady"]

UNSEEN = "no accumulation of autograd was seen: the program computes it in a way of its own and writes it to .grad"


class GradientSource(gradients.GradientSource):
    """Gradients in `param.grad` or `param.main_grad`, moments in `optimizer.state`, shards as DTensors."""

    keeps_gradients = False
    """Whether `param.grad` holds the gradient from backward to the update."""
    _states: StateReader | None = None
    _parameters: list[Any] | None = None
    _zeroed: ZeroedGradients | None = None

    def weights(self) -> list[Weight]:
        """Every parameter, under its plain name."""
        return named_weights(self.models)

    def trained(self) -> Iterable[Any]:
        """The parameters of the optimizer, and of those inside of it; none where these are no parameters of the model:
        a dummy, or copies of them."""
        found = [parameter for group in param_groups(self.optimizer) for parameter in group["params"]]
        own = {id(parameter) for model in self.models for parameter in model.parameters()}
        return found if any(id(parameter) in own for parameter in found) else []

    def follow(self, optimizer: Any) -> None:
        """Another optimizer updates the parameters from now on."""
        super().follow(optimizer)
        self._states = self._parameters = None

    def attach(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` after each accumulation."""
        self.hook_accumulation(weights, on_ready, registrations)
        self.hook_weight_passes(weights, on_ready, registrations)

    def hook_weight_passes(self, weights: Sequence[Weight], on_ready: OnReady, registrations: Registrations) -> None:
        """Call `on_ready` also after backwards that autograd's accumulation knows nothing of."""
        held = [weakref.ref(weight) for weight in weights]

        def ended(module: nn.Module, micro_step: int) -> None:
            if not on_ready.wanted:
                return
            own = {id(parameter) for parameter in module.parameters()} - WeightPass.accumulated
            found = [weight for one in held if (weight := one()) is not None and id(weight.parameter) in own]
            entries = [(weight, weight.parameter.grad) for weight in found if weight.parameter.grad is not None]
            on_ready(entries, micro_step=micro_step)

        after_each(self.guard, ended, registrations)

    def hook_accumulation(
        self,
        weights: Sequence[Weight],
        on_ready: OnReady,
        registrations: Registrations,
        *,
        complete: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call `on_ready` after each accumulation. `complete`: see `OnReady`."""
        for weight in weights:
            if weight.parameter.requires_grad:
                hook = Accumulated(self.guard, weight, on_ready, complete)
                # Optimizers may step in hooks of this kind, and clear the gradient.
                registrations.add(register_first(weight.parameter, hook))

    def reduced(self, weight: Weight) -> torch.Tensor | None:
        """The gradient that the optimizer consumes, or None where there is none."""
        main_grad = getattr(weight.parameter, "main_grad", None) if self.main_grad else None
        return main_grad if main_grad is not None else weight.parameter.grad

    def has_none(self) -> bool:
        """Whether the gradient of no trained parameter is there, or is zero because the program has made it so."""
        if not self.keeps_gradients:
            return False
        if self._parameters is None:
            trained = [weight for weight in self.weights() if self.trains(weight)]
            self._parameters = [(weight.parameter, weight) for weight in trained]
        zeroed = self._zeroed
        return all(
            (one.grad is None and self.reduced(weight) is None) or (zeroed is not None and zeroed.has(one))
            for one, weight in self._parameters
        )

    def attach_update(
        self, on_update: Callable[[], None], steps: OptimizerSteps[Any], registrations: Registrations
    ) -> None:
        """Call `on_update` when the optimizer's step begins, or has called its closure."""
        super().attach_update(on_update, steps, registrations)
        if self.keeps_gradients:
            self._zeroed = ZeroedGradients(self.guard)
            self._zeroed.watch(registrations)

    def value(self, weight: Weight) -> torch.Tensor | None:
        """The weight that the optimizer updates."""
        return weight.parameter.detach()

    def moments(self, weight: Weight) -> ParameterState:
        """What the optimizer, or one inside of it, keeps of the parameter now."""
        if self._states is None:
            self._states = StateReader(self.optimizer)
        return self._states.of(weight.parameter)

    def state_shard(self, weight: Weight, tensor: torch.Tensor) -> Shard | None:
        """Of a tensor that is as large as this rank's part, the parameter's; of any other, the rank's own."""
        own = self.shard(weight, STATE)
        if own is None or hasattr(tensor, "_local_tensor"):
            return mesh_shard(tensor)
        if tensor.numel() == own.local_numel:
            return own
        return Shard((-1,), tuple(tensor.shape), f"rank {distributed.get_rank()}")

    def layout(self, weight: Weight) -> Layout | None:
        """One process shares nothing; of several only the script knows."""
        return self.given_layout(weight) if is_distributed() else ALONE

    def shard(self, weight: Weight, data_type: str) -> Shard | None:
        """The part of a DTensor that this rank holds."""
        return mesh_shard(weight.parameter)
