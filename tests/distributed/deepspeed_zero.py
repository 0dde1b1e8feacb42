"""DeepSpeed on each rank, ZeRO 0 to 3."""

from __future__ import annotations

import os
from typing import Any

import torch

from .prove import Trained, prove
from .workload import batch, loss_of, make_model, make_optimizer

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed


def build(
    *,
    stage: int,
    grad_acc_steps: int = 1,
    precision: str = "fp32",
    offload: bool = False,
    given: str = "engine",
    **config: Any,
) -> Trained:
    """One training. ``given``: what the script passes as the optimizer."""
    model = make_model()
    zero: dict[str, Any] = {"stage": stage, **config.pop("zero", {})}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": grad_acc_steps,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # Its own operator would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        **config,
    }
    if precision != "fp32":
        settings[precision] = {"enabled": True, **settings.get(precision, {})}
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=make_optimizer(model.parameters()), config=settings
    )
    rank = torch.distributed.get_rank()
    dtype = next(model.parameters()).dtype

    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(grad_acc_steps):
            loss = loss_of(engine(batch(number, rank, micro_step).to(dtype)))
            total += engine.backward(loss).item()
            engine.step()
        return total

    inner = getattr(optimizer, "optimizer", optimizer)
    passed = {"engine": engine, "optimizer": optimizer, "inner": inner}[given]
    return Trained(model=engine, optimizer=passed, step=step, grad_acc_steps=grad_acc_steps, watched=[optimizer, inner])


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of :func:`prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))
