"""Megatron-core on each rank: data parallel, with every optimizer."""

# ruff: noqa: E402 (CUDA must be answered for before anything of Megatron is imported)

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d

from .megatron_on_cpu import answer_with_cpu
from .prove import Trained, make_monitor, prove
from .workload import batch, loss_of, make_model

answer_with_cpu()

from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.01
CLIP = 1.0


_sizes: dict[str, int | None] = {}


def parallel(**sizes: int | None) -> None:
    """Make Megatron's process groups, of these sizes."""
    if parallel_state.model_parallel_is_initialized():
        if sizes == _sizes:
            return
        parallel_state.destroy_model_parallel()
        # Megatron only forgets them, and each has threads of its own.
        for group in list(distributed_c10d._world.pg_map):
            if group is not distributed_c10d.GroupMember.WORLD:
                torch.distributed.destroy_process_group(group)
    _sizes.clear()
    _sizes.update(sizes)
    parallel_state.initialize_model_parallel(**sizes)


def make_optimizer(
    chunks: list[Any], *, dtype: torch.dtype = torch.float32, split: bool = False, **further: Any
) -> Any:
    """AdamW as the other engines have it, in Megatron's wrapping."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        clip_grad=CLIP,
        use_distributed_optimizer=split,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        params_dtype=dtype,
        **further,
    )
    return get_megatron_optimizer(config, chunks)


def build(
    *,
    precision: str = "float32",
    split: bool = False,
    grad_acc_steps: int = 1,
    sync_last: bool = False,
    reduce_in_fp32: bool = True,
    optimizer: dict[str, Any] | None = None,
    given: str = "wrapped",
    dp_group: bool = False,
    **ddp: Any,
) -> Trained:
    """One data-parallel training of the common model.

    Args:
        precision: of the weights.
        split: whether the optimizer is distributed.
        grad_acc_steps: micro-steps per step.
        sync_last: whether the micro-steps before the last run under ``no_sync``, as Megatron's schedules do when they
            overlap the reduction with the backward.
        reduce_in_fp32: whether ``main_grad`` is in single precision.
        optimizer: further fields of the optimizer's configuration.
        given: what ``set_monitor`` is given: the ``wrapped`` model, or what is ``inside``.
        dp_group: whether it is given the data-parallel group.
        ddp: further fields of the configuration of DistributedDataParallel.
    """
    parallel()
    dtype = getattr(torch, precision)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=dtype == torch.bfloat16, fp16=dtype == torch.float16
    )
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=reduce_in_fp32, use_distributed_optimizer=split, **ddp
    )
    model = DistributedDataParallel(config=config, ddp_config=ddp_config, module=make_model().to(dtype))
    adam = make_optimizer([model], dtype=dtype, split=split, **(optimizer or {}))
    rank = torch.distributed.get_rank()

    def step(number: int) -> float:
        total = 0.0
        model.zero_grad_buffer()
        adam.zero_grad()
        for micro_step in range(grad_acc_steps):
            last = micro_step == grad_acc_steps - 1
            if sync_last and not last:
                with model.no_sync():
                    total += _backward(model, adam, batch(number, rank, micro_step).to(dtype), grad_acc_steps)
            else:
                total += _backward(model, adam, batch(number, rank, micro_step).to(dtype), grad_acc_steps)
        finalize_model_grads([model])
        adam.step()
        return total

    groups = {"dp_group": parallel_state.get_data_parallel_group()} if dp_group else {}
    return Trained(
        model=model if given == "wrapped" else model.module,
        optimizer=adam,
        step=step,
        grad_acc_steps=grad_acc_steps,
        groups=groups,
        watched=watched([model], adam),
    )


def _backward(model: Any, optimizer: Any, inputs: torch.Tensor, grad_acc_steps: int) -> float:
    loss = loss_of(model(inputs)) / grad_acc_steps
    optimizer.scale_loss(loss).sum().backward()
    return loss.item()


def watched(chunks: list[Any], optimizer: Any) -> list[Any]:
    """Whatever may be hooked or patched besides models and the optimizer."""
    owners: list[Any] = []
    for chunk in chunks:
        groups = [*getattr(chunk, "bucket_groups", ()), *getattr(chunk, "expert_parallel_bucket_groups", ())]
        owners += groups or [bucket for buffer in chunk.buffers for bucket in buffer.buckets]
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        owners += [one, one.optimizer]
    return owners


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))


def skipping(*, output: str, steps: int, **variant: Any) -> list[bool]:
    """A monitored training; which of its steps were not skipped."""
    trained = build(**variant)
    monitor = make_monitor(trained, Path(output))
    done = []
    inner = trained.optimizer.step
    trained.optimizer.step = lambda: done.append(inner()[0])
    for number in range(steps):
        trained.step(number)
    del trained.optimizer.step
    monitor.close()
    return done


def unknown_buckets(*, output: str) -> None:
    """A step with a model whose buckets do not begin reductions as those of known versions do."""
    trained = build()
    trained.model.bucket_groups = [_Opaque(group) for group in trained.model.bucket_groups]
    monitor = make_monitor(trained, Path(output))
    trained.step(0)
    monitor.close()


class _Opaque:
    """A group of buckets that has another form inside."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.finish_grad_sync = group.finish_grad_sync
        self.reset = group.reset
