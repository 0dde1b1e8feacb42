"""A training with accelerate, watched on every rank.

torchrun --nproc-per-node 2 examples/accelerate_ddp.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from msmon.pytorch import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")


def main() -> None:
    """Four steps of two micro-steps each."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    data = torch.Generator().manual_seed(accelerator.process_index)
    with TrainerMon(CONFIG) as monitor:
        # The wrapped optimizer or the one inside (optimizer.optimizer): both will do.
        monitor.set_monitor(model, grad_acc_steps=accelerator.gradient_accumulation_steps, optimizer=optimizer)
        for _ in range(8):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.randn(8, 16, generator=data)).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()
    accelerator.print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    accelerator.end_training()


if __name__ == "__main__":
    main()
