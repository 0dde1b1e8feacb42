"""FSDP2 (fully_shard) with accumulation, watched on every rank; then the parts are joined.

torchrun --nproc-per-node 2 examples/fsdp2.py && msmon merge monitor_output
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from msmon.pytorch import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")


def main() -> None:
    """Four steps of two micro-steps each."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    with TrainerMon(CONFIG) as monitor:
        monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer)
        for _ in range(4):
            for last in (False, True):
                model.set_requires_gradient_sync(last)
                model(torch.randn(8, 16, generator=data)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
