"""Faults as they happen in training, each at a step, layer, rank and size that are drawn.

A fault acts from outside the monitor: on modules, parameters, optimizers and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FIRST_STEP, LAST_STEP = 40, 95
"""A fault happens at a step drawn from this range, the last one not included."""

Generator = np.random.Generator


@dataclass
class Run:
    """What a fault may lay its hands on."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rank: int
    world: int


@dataclass
class Fault:
    """One fault of one run. `step`, `rank` and `layer` are what the alerts have to name."""

    name: str
    step: int
    rank: int | None
    """None: it happens on all ranks."""
    layers: tuple[str, ...]
    """Modules that are right answers; a trailing "*" stands for everything below."""
    data_types: tuple[str, ...] = ()
    """Where every layer is hit: the data types that are right answers."""
    size: float = float("nan")
    from_start: bool = False
    """The training is another one from its first step on, not only from `step` on."""
    before_step: list[Callable[[int], None]] = field(default_factory=list)
    change_batch: Callable[[int, Tensor], Tensor] | None = None

    def strikes(self, run: Run) -> bool:
        return self.rank is None or self.rank == run.rank


def linear_layers(model: nn.Module) -> list[str]:
    """Linear layers that every step uses."""
    return [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and ".experts." not in n]


def _wrap_forward(module: nn.Module, change: Callable[[Callable[..., Any], tuple[Any, ...]], Any]) -> None:
    """Puts `change` around a module's own forward, inside of all hooks."""
    original = module.forward
    module.forward = lambda *args: change(original, args)  # type: ignore[method-assign]


class Clock:
    """The step that is running, for callbacks that are called without it."""

    step = -1


def _at(fault: Fault, run: Run, clock: Clock) -> bool:
    return fault.strikes(run) and clock.step == fault.step


def _since(fault: Fault, run: Run, clock: Clock) -> bool:
    return fault.strikes(run) and clock.step >= fault.step


def _element(generator: Generator, tensor: Tensor) -> int:
    return int(generator.integers(tensor.numel()))


def _pick(generator: Generator, names: list[str]) -> str:
    return names[int(generator.integers(len(names)))]


def _begin(name: str, run: Run, generator: Generator) -> Fault:
    step = int(generator.integers(FIRST_STEP, LAST_STEP))
    return Fault(name, step, int(generator.integers(run.world)), ())


def nan_in_activation(run: Run, generator: Generator, clock: Clock) -> Fault:
    fault = _begin("NaN in an activation", run, generator)
    layer = _pick(generator, linear_layers(run.model))
    fault.layers = (layer,)

    def change(forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        output = forward(*args)
        if _at(fault, run, clock):
            output = output.clone()
            output.view(-1)[_element(generator, output)] = float("nan")
        return output

    _wrap_forward(run.model.get_submodule(layer), change)
    return fault


def _gradient_fault(
    name: str, run: Run, generator: Generator, clock: Clock, change: Callable[[Tensor], Tensor], once: bool = True
) -> Fault:
    fault = _begin(name, run, generator)
    layer = _pick(generator, linear_layers(run.model))
    fault.layers = (layer,)
    acts = _at if once else _since
    run.model.get_submodule(layer).weight.register_hook(lambda g: change(g) if acts(fault, run, clock) else g)
    return fault


def inf_in_gradient(run: Run, generator: Generator, clock: Clock) -> Fault:
    def change(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[_element(generator, gradient)] = float("inf")
        return gradient

    return _gradient_fault("Inf in a gradient", run, generator, clock, change)


def gradient_scaled(run: Run, generator: Generator, clock: Clock) -> Fault:
    factor = 10 ** generator.uniform(1.5, 2.5)
    fault = _gradient_fault("gradient scaled ~100", run, generator, clock, lambda g: g * factor)
    fault.size = factor
    return fault


def gradient_zeroed(run: Run, generator: Generator, clock: Clock) -> Fault:
    return _gradient_fault("gradient zeroed", run, generator, clock, torch.zeros_like, once=False)


def gradient_underflows(run: Run, generator: Generator, clock: Clock) -> Fault:
    """The gradient goes through half precision with a scale at which a drawn share of it is lost."""
    share = generator.uniform(0.5, 0.95)

    def change(gradient: Tensor) -> Tensor:
        smallest = 2.0**-25  # half of it is rounded to zero
        scale = smallest / max(float(gradient.abs().flatten().quantile(share)), 1e-30)
        return (gradient * scale).half().float() / scale

    fault = _gradient_fault("fp16 gradient underflows", run, generator, clock, change, once=False)
    fault.size = share
    return fault


def _weight_fault(name: str, run: Run, generator: Generator, clock: Clock, change: Callable[[Tensor], None]) -> Fault:
    fault = _begin(name, run, generator)
    layer = _pick(generator, linear_layers(run.model))
    fault.layers = (layer,)
    weight = run.model.get_submodule(layer).weight

    @torch.no_grad()
    def strike(step: int) -> None:
        if _at(fault, run, clock):
            change(weight)

    fault.before_step.append(strike)
    return fault


def nan_on_one_rank(run: Run, generator: Generator, clock: Clock) -> Fault:
    def change(weight: Tensor) -> None:
        weight.view(-1)[_element(generator, weight)] = float("nan")

    return _weight_fault("NaN on one rank only", run, generator, clock, change)


def weight_scaled(run: Run, generator: Generator, clock: Clock) -> Fault:
    factor = 10 ** generator.uniform(2.5, 3.5)
    fault = _weight_fault("weight scaled ~1000", run, generator, clock, lambda w: w.mul_(factor))
    fault.size = factor
    return fault


def bit_flip(run: Run, generator: Generator, clock: Clock) -> Fault:
    bit = int(generator.integers(23, 31))

    def change(weight: Tensor) -> None:
        weight.view(torch.int32).view(-1)[_element(generator, weight)] ^= 1 << bit

    fault = _weight_fault("bit flip in an exponent", run, generator, clock, change)
    fault.size = bit
    return fault


def dead_relu(run: Run, generator: Generator, clock: Clock) -> Fault:
    fault = _begin("dead ReLU layer", run, generator)
    relus = [n for n, m in run.model.named_modules() if isinstance(m, nn.ReLU) and ".experts." not in n]
    layer = _pick(generator, relus)
    fault.layers = (layer,)
    fault.size = shift = 10 ** generator.uniform(1.5, 3)
    _wrap_forward(
        run.model.get_submodule(layer), lambda forward, args: forward(args[0] - shift * _since(fault, run, clock))
    )
    return fault


def corrupted_batch(run: Run, generator: Generator, clock: Clock) -> Fault:
    fault = _begin("corrupted batch", run, generator)
    first = "tokens" if hasattr(run.model, "tokens") else "fc1"
    fault.layers = ("", first)
    constant = bool(generator.integers(2))
    fault.size = factor = 10 ** generator.uniform(0.7, 2)

    def change(step: int, batch: Tensor) -> Tensor:
        if not _at(fault, run, clock):
            return batch
        if batch.dtype == torch.int64:
            fill = int(generator.integers(256))
            noise = torch.from_numpy(generator.integers(0, 256, size=tuple(batch.shape)))
            return torch.full_like(batch, fill) if constant else noise
        return torch.full_like(batch, factor) if constant else batch * factor

    fault.change_batch = change
    return fault


def learning_rate(run: Run, generator: Generator, clock: Clock) -> Fault:
    fault = _begin("learning rate x ~100", run, generator)
    fault.rank, fault.data_types = None, ("param_updated",)
    fault.size = factor = 10 ** generator.uniform(1.5, 2.5)

    def strike(step: int) -> None:
        if step == fault.step:
            for group in run.optimizer.param_groups:
                group["lr"] *= factor

    fault.before_step.append(strike)
    return fault


def moment_overwritten(run: Run, generator: Generator, clock: Clock) -> Fault:
    fault = _begin("moment overwritten", run, generator)
    layer = _pick(generator, linear_layers(run.model))
    fault.layers = (layer,)
    weight = run.model.get_submodule(layer).weight
    moment = ("exp_avg", "exp_avg_sq")[int(generator.integers(2))]
    fault.size = factor = (0.0, 10 ** generator.uniform(1, 4))[int(generator.integers(2))]

    def strike(step: int) -> None:
        if _at(fault, run, clock):
            run.optimizer.state[weight][moment].mul_(factor)

    fault.before_step.append(strike)
    return fault


def unused_expert(run: Run, generator: Generator, clock: Clock) -> Fault:
    fault = _begin("unused expert", run, generator)
    name, experts = next((n, m) for n, m in run.model.named_modules() if hasattr(m, "blocked"))
    expert = int(generator.integers(len(experts.experts)))
    fault.rank, fault.layers, fault.size = None, (f"{name}.experts.{expert}*",), expert

    def strike(step: int) -> None:
        if step == fault.step:
            experts.blocked = expert

    fault.before_step.append(strike)
    return fault


def violent_update(run: Run, generator: Generator, clock: Clock) -> Fault:
    """Word embeddings that hardly had a gradient for thousands of steps, with a second moment that forgets slowly."""
    fault = _begin("embedding with large beta2", run, generator)
    fault.layers, fault.rank, fault.from_start = ("tokens",), None, True
    weight = run.model.get_submodule("tokens").weight
    fault.size = factor = 10 ** generator.uniform(-5, -3)
    steps_before = float(generator.integers(2_000, 20_000))
    weight.register_hook(lambda g: g if clock.step >= fault.step else g * factor)
    first = run.optimizer.param_groups[0]
    first["params"] = [p for p in first["params"] if p is not weight]
    run.optimizer.add_param_group({"params": [weight], "betas": (0.9, 0.99999)})

    def strike(step: int) -> None:
        if step == 2:  # as if these thousands of steps had been like the first two
            run.optimizer.state[weight]["step"].fill_(steps_before)
            run.optimizer.state[weight]["exp_avg_sq"].mul_(min(steps_before * 1e-5, 1) / 2e-5)

    fault.before_step.append(strike)
    return fault


Maker = Callable[[Run, Generator, Clock], Fault]

EXACT: dict[str, Maker] = {
    "nan_in_activation": nan_in_activation,
    "inf_in_gradient": inf_in_gradient,
    "nan_on_one_rank": nan_on_one_rank,
}
"""NaN and Inf: found always, at the exact step, layer and rank."""

GRADUAL: dict[str, Maker] = {
    "weight_scaled": weight_scaled,
    "gradient_scaled": gradient_scaled,
    "gradient_zeroed": gradient_zeroed,
    "dead_relu": dead_relu,
    "corrupted_batch": corrupted_batch,
    "learning_rate": learning_rate,
    "bit_flip": bit_flip,
    "moment_overwritten": moment_overwritten,
    "unused_expert": unused_expert,
    "violent_update": violent_update,
    "gradient_underflows": gradient_underflows,
}
"""The others: at the right layer within two steps."""

FAULTS = EXACT | GRADUAL

RANKS_ONLY = frozenset({"nan_on_one_rank"})
GPT_ONLY = frozenset({"unused_expert", "violent_update"})
