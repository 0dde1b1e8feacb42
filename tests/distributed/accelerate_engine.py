"""accelerate on each rank."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from .prove import Trained, prove
from .workload import batch, loss_of, make_model, make_optimizer


def build(*, grad_acc_steps: int = 1, inner_optimizer: bool = False, inner_model: bool = False) -> Trained:
    """One training; ``inner_...``: the monitor is given what accelerate has wrapped."""
    AcceleratorState._reset_state(False)
    GradientState._reset_state()
    rank = torch.distributed.get_rank()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=grad_acc_steps)
    plain = make_model()
    model, optimizer = accelerator.prepare(plain, make_optimizer(plain.parameters()))

    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(grad_acc_steps):
            with accelerator.accumulate(model):
                loss = loss_of(model(batch(number, rank, micro_step)))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item() / grad_acc_steps
        return total

    return Trained(
        model=accelerator.unwrap_model(model) if inner_model else model,
        optimizer=optimizer.optimizer if inner_optimizer else optimizer,
        step=step,
        grad_acc_steps=grad_acc_steps,
        watched=[optimizer],
    )


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))
