"""Tensor parallelism by DTensor (parallelize_module), watched on every rank; then the parts are joined.

torchrun --nproc-per-node 2 examples/tensor_parallel.py && msmon merge monitor_output
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from msmon.pytorch import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")


def main() -> None:
    """Four steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.LayerNorm(16))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    data = torch.Generator().manual_seed(0)
    with TrainerMon(CONFIG) as monitor:
        # With tp_group only the first rank writes parameters that are not split, such as the norm's.
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer, tp_group=mesh.get_group())
        for _ in range(4):
            model(torch.randn(8, 16, generator=data)).sub(1).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
