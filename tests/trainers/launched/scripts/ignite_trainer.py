"""Ignite's trainer."""

import torch
from ignite.engine import create_supervised_trainer
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    trainer = create_supervised_trainer(model, torch.optim.AdamW(model.parameters(), lr=0.01), nn.MSELoss())
    trainer.run([(torch.randn(2, 4), torch.randn(2, 1)) for _ in range(3)], max_epochs=2)
    torch.save(model.state_dict(), "model.pth")
