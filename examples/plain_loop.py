"""A training that does not mention msmon: `msmon run --watch wg,xy -- python examples/plain_loop.py`."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(256, 16)
targets = inputs[:, :1] * inputs[:, 1:2]

for step in range(20):
    loss = (model(inputs) - targets).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}")
