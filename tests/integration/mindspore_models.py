"""The two tiny models of the reference data in MindSpore, with the weights and batches of the torch ones."""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn

from .reference_cases import CASES as ALL

HERE = Path(__file__).parent / "data"
DATA = HERE / "reference"
# These two have tests of their own.
CASES = {name: case for name, case in ALL.items() if name not in ("linear_hook", "struct")}


class Seq(nn.Cell):
    """Embedding, LSTM and a head on the LSTM's output."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Dense(6, 3)

    def construct(self, tokens):
        return self.head(self.rnn(self.emb(tokens))[0])


def mlp() -> nn.Cell:
    """Two layers with a ReLU between them."""
    return nn.SequentialCell(OrderedDict(fc1=nn.Dense(4, 8), relu=nn.ReLU(), fc2=nn.Dense(8, 2)))


def build(name: str) -> tuple[nn.Cell, nn.Optimizer]:
    """The model of a case with torch's weights, and its optimizer."""
    model = mlp() if name == "mlp" else Seq()
    with np.load(HERE / "mindspore" / f"{name}.npz") as file:
        for key, parameter in model.parameters_and_names():
            parameter.set_data(Tensor(file[f"weight:{key.replace('embedding_table', 'weight')}"]))
    # MindSpore adds eps before the bias of the moments is corrected, torch after it: only a tiny one is the same.
    return model, nn.Adam(model.trainable_params(), 1e-2, eps=1e-12)


def batches(name: str) -> list[Tensor]:
    """The batches of all micro-steps, in order."""
    with np.load(HERE / "mindspore" / f"{name}.npz") as file:
        return [Tensor(file[f"batch:{index}"]) for index in range(sum(key.startswith("batch") for key in file))]


def train(
    name: str,
    model: nn.Cell,
    optimizer: Callable[..., Any],
    grad_acc_steps: int = 1,
    *,
    steps: int = 4,
    change: Callable[[int, Tensor], Tensor] = lambda step, batch: batch,
) -> list[bytes]:
    """Train by ``value_and_grad``, with gradients added up by hand; returns the losses of all micro-steps, bit by bit.

    ``change`` may put something else in the place of a step's batch.
    """

    def forward(batch):
        return model(batch).pow(2).mean() / grad_acc_steps

    grad = mindspore.value_and_grad(forward, None, optimizer.parameters)
    coming = iter(batches(name))
    losses = []
    for step in range(steps):
        total = None
        for _ in range(grad_acc_steps):
            loss, gradients = grad(change(step, next(coming)))
            total = gradients if total is None else tuple(a + b for a, b in zip(total, gradients, strict=True))
            losses.append(loss.asnumpy().tobytes())
        optimizer(total)
    return losses


def config_of(case: str) -> dict[str, Any]:
    """The configuration with which the reference was made."""
    return json.loads((DATA / case / "config.json").read_text())


def weight_bytes(model: nn.Cell) -> bytes:
    """All parameters, bit by bit."""
    return b"".join(parameter.asnumpy().tobytes() for parameter in model.get_parameters())
