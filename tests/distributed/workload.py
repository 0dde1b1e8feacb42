"""One small training, the same for every engine, and what a single unsharded process makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from attrs import field, frozen
from torch import nn

STEPS = 3
ROWS = 4
"""Examples of a rank and micro-step."""


class Perceptron(nn.Module):
    """Sizes that divide by nothing: uneven shards, and a bias of one element, so that other ranks hold none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 33)
        self.norm = nn.LayerNorm(33)
        self.fc2 = nn.Linear(33, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.fc2(torch.relu(self.norm(self.fc1(x))))))


def make_model() -> nn.Module:
    """The model with the same weights on every call."""
    torch.manual_seed(0)
    return Perceptron()


def make_optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Large steps, so that a mistake in one of them shows."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def batch(step: int, rank: int, micro_step: int = 0) -> torch.Tensor:
    """Inputs ``[ROWS, 8]`` of one rank in one micro-step."""
    seed = 1 + step * 10_000 + rank * 100 + micro_step
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(seed))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """A mean over examples, so that the mean over ranks is the loss of the whole batch."""
    return output.float().pow(2).mean()


@frozen(kw_only=True)
class ReferenceStep:
    """The tensors of one step of the unsharded training."""

    tables: dict[str, dict[str, torch.Tensor]] = field(factory=dict)
    """Data type -> name -> the whole tensor."""
    unreduced: dict[int, list[dict[str, torch.Tensor]]] = field(factory=dict)
    """Rank -> micro-step -> name -> the gradient accumulated so far on that rank's batches alone."""


def reference_training(
    *,
    world_size: int = 2,
    grad_acc_steps: int = 1,
    steps: int = STEPS,
    model: Callable[[], nn.Module] = make_model,
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = make_optimizer,
    clip: float | None = None,
) -> list[ReferenceStep]:
    """Train in this process on the batches of all ranks at once."""
    trained = model()
    optimizer_ = optimizer(trained.parameters())
    names = {name: parameter for name, parameter in trained.named_parameters() if parameter.requires_grad}
    recorded = []
    for step in range(steps):
        now = ReferenceStep()
        for rank, micro_step in product(range(world_size), range(grad_acc_steps)):
            if micro_step == 0:
                optimizer_.zero_grad()
            (loss_of(trained(batch(step, rank, micro_step))) / grad_acc_steps).backward()
            now.unreduced.setdefault(rank, []).append(_copies({n: p.grad for n, p in names.items()}))
        optimizer_.zero_grad()
        whole = [batch(step, rank, micro) for rank, micro in product(range(world_size), range(grad_acc_steps))]
        loss_of(trained(torch.cat(whole))).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(trained.parameters(), clip)
        now.tables["grad_reduced"] = _copies({n: p.grad for n, p in names.items()})
        now.tables["param_origin"] = _copies(names)
        for moment in ("exp_avg", "exp_avg_sq"):
            states = {n: optimizer_.state[p][moment] for n, p in names.items() if optimizer_.state[p]}
            now.tables[moment] = _copies(states)
        optimizer_.step()
        now.tables["param_updated"] = _copies(names)
        recorded.append(now)
    return recorded


def _copies(tensors: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor is not None}
