"""The two models that are trained with faults, and their data."""

from __future__ import annotations

import itertools
import pydoc_data.topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, WIDTH, HEADS, EXPERTS = 256, 32, 48, 4, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3 * HEADS, -1).transpose(1, 2).chunk(3, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, inner)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))


class Experts(nn.Module):
    """Each token goes to the two experts that the router prefers; an expert without tokens is not called.

    `imbalance` is the usual auxiliary loss (share of tokens times mean probability, summed over the experts).
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.blocked: int | None = None  # a fault may keep all tokens from one expert
        self.experts = nn.ModuleList(FeedForward(WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        if self.blocked is not None:
            probabilities = probabilities.index_fill(-1, torch.tensor(self.blocked), 0.0)
        weight, chosen = probabilities.topk(2, dim=-1)
        used = F.one_hot(chosen, EXPERTS).float().mean((0, 1, 2))
        self.imbalance = EXPERTS * (used * probabilities.mean((0, 1))).sum()
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            *where, rank = torch.where(chosen == index)
            if len(rank):
                share = weight[(*where, rank)].unsqueeze(-1)
                y = y.index_put(tuple(where), share * expert(x[tuple(where)]), accumulate=True)
        return y


class Block(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """Three blocks, the last a mixture of four experts; next byte of English text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(m) for m in (FeedForward(4 * WIDTH), FeedForward(4 * WIDTH), Experts()))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class SmallMLP(nn.Sequential):
    """Four hidden layers; classes of a noisy mixture in 32 dimensions."""

    def __init__(self) -> None:
        sizes = [32, 64, 64, 64, 64]
        layers: dict[str, nn.Module] = {}
        for number, (before, after) in enumerate(itertools.pairwise(sizes), start=1):
            layers[f"fc{number}"] = nn.Linear(before, after)
            layers[f"relu{number}"] = nn.ReLU()
        layers["head"] = nn.Linear(sizes[-1], 10)
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class Text:
    """Random windows of the text that every Python carries."""

    def __init__(self, generator: np.random.Generator, batch: int = 16) -> None:
        text = "".join(pydoc_data.topics.topics.values()).encode()
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._generator, self._batch = generator, batch

    def __call__(self) -> tuple[Tensor, Tensor]:
        starts = self._generator.integers(0, len(self._text) - CONTEXT - 1, size=self._batch)
        windows = torch.stack([self._text[start : start + CONTEXT + 1] for start in starts.tolist()])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class Mixture:
    """Points around ten centres."""

    def __init__(self, generator: np.random.Generator, batch: int = 64) -> None:
        self._centres = torch.from_numpy(np.random.default_rng(7).normal(size=(10, 32))).float()
        self._generator, self._batch = generator, batch

    def __call__(self) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(self._generator.integers(0, 10, size=self._batch))
        noise = torch.from_numpy(self._generator.normal(size=(self._batch, 32))).float()
        return self._centres[labels] + 1.5 * noise, labels


MODELS = {"gpt": (SmallGPT, Text), "mlp": (SmallMLP, Mixture)}


def loss_of(model: nn.Module, batch: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, and for a mixture of experts a part for their imbalance. `model` may be wrapped."""
    loss = F.cross_entropy(model(batch).flatten(0, -2), target.flatten())
    for module in model.modules():
        if isinstance(module, Experts):
            loss = loss + 0.1 * module.imbalance
    return loss
