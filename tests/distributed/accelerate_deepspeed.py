"""DeepSpeed below accelerate, on each rank."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState, GradientState

from . import deepspeed_zero
from .prove import Trained, prove
from .workload import ROWS, batch, loss_of, make_model, make_optimizer


def build(*, stage: int, grad_acc_steps: int, inner_optimizer: bool) -> Trained:
    """One training; ``inner_optimizer``: the monitor is given DeepSpeed's optimizer, not accelerate's wrapper."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    plugin = DeepSpeedPlugin(
        hf_ds_config={
            "train_micro_batch_size_per_gpu": ROWS,
            "gradient_accumulation_steps": grad_acc_steps,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
    )
    accelerator = Accelerator(deepspeed_plugin=plugin)
    plain = make_model()
    model, optimizer = accelerator.prepare(plain, make_optimizer(plain.parameters()))
    rank = torch.distributed.get_rank()

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
        model=model,
        optimizer=optimizer.optimizer if inner_optimizer else optimizer,
        step=step,
        grad_acc_steps=grad_acc_steps,
        weights=lambda: [deepspeed_zero.local(parameter) for parameter in plain.parameters()],
        watched=[optimizer, optimizer.optimizer],
    )


def proof(*, output: str, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    try:
        return prove(lambda: build(**variant), output=output)
    finally:
        # accelerate alone must not find what was set up here.
        AcceleratorState._reset_state(True)
        os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
