"""The two tiny models of the reference data, and the training that produced it."""

import json
from pathlib import Path

import torch
from torch import nn

DATA = Path(__file__).parent / "data" / "reference"


class Seq(nn.Module):
    """Embedding, LSTM and a head on the LSTM's output."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.emb(tokens))[0])


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of a case with its optimizer, from the fixed seed."""
    torch.manual_seed(0)
    if name == "mlp":
        model: nn.Module = nn.Sequential()
        model.add_module("fc1", nn.Linear(4, 8))
        model.add_module("relu", nn.ReLU())
        model.add_module("fc2", nn.Linear(8, 2))
    else:
        model = Seq()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(name: str, model: nn.Module, optimizer: torch.optim.Optimizer, grad_acc_steps: int) -> list[float]:
    """The four steps of a case; returns the losses of all micro-steps."""
    torch.manual_seed(1)
    losses = []
    for _ in range(4):
        for _ in range(grad_acc_steps):
            batch = torch.randn(5, 4) if name == "mlp" else torch.randint(0, 11, (2, 5))
            loss = model(batch).pow(2).mean() / grad_acc_steps
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def config_of(case: str) -> dict[str, object]:
    """The configuration with which the reference was made."""
    return json.loads((DATA / case / "config.json").read_text())
