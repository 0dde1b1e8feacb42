"""Lightning's Trainer: one line makes it watched. Lightning starts the two processes itself.

python examples/lightning_trainer.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from msmon.integrations.lightning import MsmonCallback

CONFIG = Path(__file__).with_name("monitor_config.json")


class Regression(LightningModule):
    """A small perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.layers(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Four steps of two batches each."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(256, 16)), batch_size=8)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=4,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[MsmonCallback(CONFIG)],
    )
    trainer.fit(Regression(), data)
    if trainer.is_global_zero:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))


if __name__ == "__main__":
    main()
