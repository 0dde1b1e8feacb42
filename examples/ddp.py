"""DistributedDataParallel, watched on every rank.

torchrun --nproc-per-node 2 examples/ddp.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msmon.pytorch import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")


def main() -> None:
    """Four steps of two micro-steps each."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    with TrainerMon(CONFIG) as monitor:
        # With dp_group only the first rank writes the reduced gradients: they are the same on all.
        monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer, dp_group=dist.group.WORLD)
        for _ in range(4):
            with model.no_sync():
                model(torch.randn(8, 16, generator=data)).pow(2).mean().backward()
            model(torch.randn(8, 16, generator=data)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
