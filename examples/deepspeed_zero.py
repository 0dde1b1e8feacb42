"""DeepSpeed with ZeRO, watched on every rank; then the parts are joined.

torchrun --nproc-per-node 2 examples/deepspeed_zero.py [STAGE] && msmon merge monitor_output
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

# Without it DeepSpeed looks for an accelerator.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

from msmon.pytorch import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")
STAGE = int(sys.argv[1]) if len(sys.argv) > 1 else 2


def main() -> None:
    """Four steps of two micro-steps each."""
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": STAGE},
    }
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=adam, config=config)
    data = torch.Generator().manual_seed(engine.global_rank)
    with TrainerMon(CONFIG) as monitor:
        # The engine, its optimizer, or the one inside it (adam): all of them will do.
        monitor.set_monitor(engine, grad_acc_steps=2, optimizer=optimizer)
        for _ in range(8):
            engine.backward(engine(torch.randn(8, 16, generator=data).bfloat16()).float().pow(2).mean())
            engine.step()
    if engine.global_rank == 0:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
