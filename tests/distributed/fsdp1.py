"""FullyShardedDataParallel (FSDP1) on each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from .prove import Trained, make_monitor, plain_step, prove
from .workload import batch, loss_of, make_model, make_optimizer


def _no_sync_step(model: FullyShardedDataParallel, optimizer: Any, rank: int, acc: int) -> Callable[[int], float]:
    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(acc):
            with contextlib.nullcontext() if micro_step == acc - 1 else model.no_sync():
                loss = loss_of(model(batch(number, rank, micro_step))) / acc
                loss.backward()
                total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def build(
    *,
    nested: bool = True,
    bf16: bool = False,
    strategy: str = "FULL_SHARD",
    grad_acc_steps: int = 1,
    no_sync: bool = True,
    ignored: bool = False,
    use_orig_params: bool = True,
) -> Trained:
    """One training."""
    rank = torch.distributed.get_rank()
    plain = make_model()
    model = FullyShardedDataParallel(
        plain,
        use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}) if nested else None,
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None,
        ignored_modules=[plain.norm] if ignored else None,
    )
    optimizer = make_optimizer(model.parameters())
    if grad_acc_steps > 1 and no_sync:
        step = _no_sync_step(model, optimizer, rank, grad_acc_steps)
    else:
        step = plain_step(model, optimizer, rank=rank, grad_acc_steps=grad_acc_steps)
    return Trained(
        model=model,
        optimizer=optimizer,
        step=step,
        grad_acc_steps=grad_acc_steps,
        watched=[handle.flat_param for one in FullyShardedDataParallel.fsdp_modules(model) if (handle := one._handle)],
    )


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))


def refusal(*, output: str) -> str:
    """What is logged when ``set_monitor`` is given flat parameters; the training goes on unmonitored."""
    import logging
    from pathlib import Path

    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msmon").addHandler(handler)
    trained = build(use_orig_params=False)
    monitor = make_monitor(trained, Path(output))
    trained.step(0)
    monitor.close()
    logging.getLogger("msmon").removeHandler(handler)
    return "\n".join(said)


def unknown_version(*, output: str) -> dict[str, Any]:
    """A torch whose flat parameters are made otherwise: it cannot be installed, so an attribute is asked for that
    this one does not have either."""
    from msmon_hooks.torch.grads import fsdp1

    needed, fsdp1._NEEDED = fsdp1._NEEDED, ("_not_in_this_version",)
    try:
        return prove(build, output=output)
    finally:
        fsdp1._NEEDED = needed
