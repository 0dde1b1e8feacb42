"""Optimizer state that is no moment, on each rank."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from attrs import evolve

from .prove import Trained, make_monitor, plain_step
from .workload import STEPS


class Momentum(torch.optim.SGD):
    """Keeps, beside the momentum, a tensor of another size than the parameter's part."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if "momentum_buffer" in self.state[parameter]:
                self.state[parameter]["factor"] = torch.full((1000,), 2.0)


def kept(*, engine: str, output: str) -> dict[str, float]:
    """Train with a monitor; the norms of this rank's part of what was kept before the last step, by row."""
    trained: Trained = importlib.import_module(f".{engine}", __package__).build()
    optimizer = Momentum(trained.model.parameters(), lr=0.01, momentum=0.9)
    step = plain_step(trained.model, optimizer, rank=torch.distributed.get_rank())
    trained = evolve(trained, optimizer=optimizer, step=step)
    monitor = make_monitor(trained, Path(output))
    found: dict[str, float] = {}
    for number in range(STEPS):
        found = {
            f"{name.replace('_fsdp_wrapped_module.', '').removeprefix('module.')}.{key}": _norm(tensor)
            for name, parameter in trained.model.named_parameters()
            for key, tensor in optimizer.state.get(parameter, {}).items()
            if tensor is not None and getattr(parameter, "_local_tensor", parameter).numel()
        }
        step(number)
    monitor.close()
    return found


def _norm(tensor: torch.Tensor) -> float:
    return float(getattr(tensor, "_local_tensor", tensor).double().norm())
