"""DTensor tensor parallelism (``parallelize_module``) on each rank."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from .prove import Trained, plain_step, prove
from .workload import make_model

PLAN = {
    "fc1": ColwiseParallel(output_layouts=Replicate()),
    "fc2": RowwiseParallel(input_layouts=Replicate()),
}


def build(*, tp_group: bool = False, sequence: bool = False) -> Trained:
    """One training; all ranks see the batches of rank 0."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    plan: dict[str, Any] = {**PLAN, "norm": SequenceParallel(sequence_dim=0)} if sequence else PLAN
    model = parallelize_module(make_model(), mesh, plan)
    if sequence:
        # Its output is split over the ranks; what follows wants all of it.
        model.norm.register_forward_hook(lambda module, args, output: output.full_tensor())
    # One kernel for plain tensors and DTensors alike exists only without foreach.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    return Trained(
        model=model,
        optimizer=optimizer,
        step=plain_step(model, optimizer, rank=0),
        groups={"tp_group": torch.distributed.group.WORLD} if tp_group else {},
    )


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))
