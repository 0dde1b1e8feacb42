"""FSDP2 (``fully_shard``) on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from .prove import Trained, plain_step, prove
from .tensor_parallel import PLAN
from .workload import batch, loss_of, make_model


def _accumulating_step(model: Any, optimizer: Any, rank: int, acc: int) -> Callable[[int], float]:
    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(acc):
            model.set_requires_gradient_sync(micro_step == acc - 1)
            loss = loss_of(model(batch(number, rank, micro_step))) / acc
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def build(
    *,
    bf16: bool = False,
    grad_acc_steps: int = 1,
    sync_each: bool = False,
    mesh: tuple[int, ...] = (2,),
    names: tuple[str, ...] = ("shard",),
    reshard: bool = True,
    offload: bool = False,
) -> Trained:
    """One training. ``names``: what each dimension of ``mesh`` does, ``replicate``, ``shard`` or ``tensor``."""
    rank = torch.distributed.get_rank()
    devices = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    model: Any = make_model()
    if "tensor" in names:
        parallelize_module(model, devices["tensor"], PLAN)
        devices = devices["shard"]
        # Ranks of one tensor-parallel group see the same batches.
        rank = devices.get_local_rank()
    policy: dict[str, Any] = {"mesh": devices, "reshard_after_forward": reshard}
    policy["offload_policy"] = CPUOffloadPolicy(pin_memory=False) if offload else OffloadPolicy()
    if bf16:
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.children():
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    # One kernel for DTensors of different meshes exists only without foreach.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach="tensor" not in names)
    if grad_acc_steps > 1 and not sync_each:
        step = _accumulating_step(model, optimizer, rank, grad_acc_steps)
    else:
        step = plain_step(model, optimizer, rank=rank, grad_acc_steps=grad_acc_steps)
    groups = [group for layer in (model, *model.children()) for group in layer._get_fsdp_state()._fsdp_param_groups]
    return Trained(
        model=model, optimizer=optimizer, step=step, grad_acc_steps=grad_acc_steps, watched=[g for g in groups if g]
    )


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))


def unknown_version(*, output: str) -> dict[str, Any]:
    """A torch that reduces otherwise: it cannot be installed, so an attribute is asked for that this one does not have
    either."""
    from msmon_hooks.torch.grads import fsdp2

    needed, fsdp2._NEEDED = fsdp2._NEEDED, ("_not_in_this_version",)
    try:
        return prove(build, output=output)
    finally:
        fsdp2._NEEDED = needed
