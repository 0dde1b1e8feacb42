"""The tensors that go through collectives: what is sent and what arrives, one row for each function and argument.

torchrun --nproc-per-node 2 examples/collectives.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from msmon.pytorch import TrainerMon

CONFIG = {"cc_distribution": {"enable": True, "cc_pre_hook": True}, "ops": ["norm", "max", "nans"]}


def main() -> None:
    """Two steps of a data parallelism made by hand."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG))
        monitor = TrainerMon(path)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for _ in range(2):
        model(torch.randn(8, 16, generator=data)).pow(2).mean().backward()
        for work in [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]:
            work.wait()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    if dist.get_rank() == 0:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
