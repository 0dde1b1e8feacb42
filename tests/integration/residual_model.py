"""A model in which a careless monitor changes the training: residual adds, shared inputs, in-place operations."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class ResidualBlock(nn.Module):
    """Normalise, two branches that share one input, added in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left = nn.Linear(width, width)
        self.right = nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        y = self.right(h)
        y += self.act(self.left(h))
        return x + self.drop(y)


class ResidualModel(nn.Module):
    """Tokens [batch, time] to logits [batch, time, vocabulary], with the embedding tied to the head."""

    def __init__(self, vocabulary: int = 32, width: int = 24, depth: int = 3, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return self.head(self.norm(x))


def train(
    optimizer_name: str = "AdamW",
    steps: int = 4,
    attach=None,
    *,
    depth: int = 3,
    compiled: bool = False,
    checkpointing: bool = False,
) -> tuple[list[float], bytes]:
    """Train from a fixed seed with two micro-steps a step; returns the losses and the bytes of the final weights.

    ``attach(model, optimizer)`` may return a monitor, which is closed at the end.
    """
    torch.manual_seed(3)
    model = ResidualModel(depth=depth, checkpointing=checkpointing)
    if compiled:
        torch.compiler.reset()
        model.compile(backend="aot_eager")
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    monitor = attach(model, optimizer) if attach is not None else None
    losses = []
    for _ in range(steps):
        for _ in range(2):
            batch = torch.randint(0, 32, (4, 9))
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()) / 2
            loss.backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()
    if monitor is not None:
        monitor.close()
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return losses, weights
