"""A small transformer that is really trained under TrainerMon, with something changed in one layer from one step on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, VOCABULARY, LENGTH, BATCH, LAYERS = 32, 64, 16, 8, 4
STEPS = 12
STATISTICS = ["norm", "min", "max", "mean", "zeros", "nans"]

Change = Callable[["Model", torch.optim.Optimizer], None]


class SeededDropout(nn.Module):
    """Dropout with random numbers of its own, so that one layer's can change alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.share = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.rand(x.shape, generator=self.generator) > self.share
        return x * keep / (1 - self.share)


class Linear(nn.Linear):
    """A linear layer that can compute in bf16."""

    half = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.half:
            return super().forward(x)
        return F.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16()).float()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = Linear(WIDTH, 3 * WIDTH)
        self.out = Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.fc = Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.proj = Linear(4 * WIDTH, WIDTH)
        self.drop = SeededDropout(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.proj(self.act(self.fc(x))))


class Block(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = Mlp(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(100 * seed + layer) for layer in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Wrapped(nn.Module):
    """The same model under a wrapper that renames everything."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.wrapped = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.wrapped(tokens)


def other_gelu(layer: int) -> Change:
    def change(model: Model, _: torch.optim.Optimizer) -> None:
        model.blocks[layer].mlp.act.approximate = "tanh"

    return change


def bf16(layer: int) -> Change:
    def change(model: Model, _: torch.optim.Optimizer) -> None:
        model.blocks[layer].attention.qkv.half = True

    return change


def learning_rate(layer: int) -> Change:
    def change(_: Model, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[layer]["lr"] *= 3

    return change


def other_dropout(layer: int) -> Change:
    def change(model: Model, _: torch.optim.Optimizer) -> None:
        model.blocks[layer].mlp.drop.generator.manual_seed(12345)

    return change


def not_a_number(layer: int) -> Change:
    def change(model: Model, _: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            model.blocks[layer].mlp.fc.weight[0, 0] = float("nan")

    return change


def train(
    directory: Path,
    *,
    change: Change | None = None,
    at: int = 0,
    seed: int = 0,
    data_seed: int | None = None,
    steps: int = STEPS,
    micro_steps: int = 1,
    rank: int = 0,
    wrap: bool = False,
    dropout: bool = True,
    share: tuple[int, int] | None = None,
    **config: object,
) -> Path:
    """Train for some steps and return the output directory.

    Args:
        change: what to do to the model or the optimizer just before step `at`.
        seed: of the weights, of dropout and, unless `data_seed` says otherwise, of the data.
        rank: the number under which the monitor writes; ranks trained so do not know of each other.
        dropout: False: none, as needed where ranks share a batch.
        share: (rank, number of ranks): FSDP2 shards the model, and this rank takes its share of each batch.
        config: fields of the configuration file.
    """
    from msmon.pytorch import TrainerMon

    fields = {
        "param_distribution": True,
        "wg_distribution": True,
        "mv_distribution": True,
        "xy_distribution": True,
        "all_xy": True,
        "ops": STATISTICS,
        "ndigits": 9,
        "alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": True},
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"config-{rank}.json"
    path.write_text(json.dumps(fields | config))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = Model(seed)
    for block in model.blocks:
        block.mlp.drop.share = 0.1 if dropout else 0.0
    if share is not None:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    groups = [{"params": list(block.parameters())} for block in model.blocks]
    rest = [p for name, p in model.named_parameters() if not name.startswith("blocks.")]
    optimizer = torch.optim.AdamW([*groups, {"params": rest}], lr=1e-3)
    root = Wrapped(model) if wrap else model
    data = torch.Generator().manual_seed(
        1000 + (seed if data_seed is None else data_seed) + 17 * (rank if share is None else 0)
    )
    try:
        with (
            mock.patch.dict(os.environ, {"MONITOR_OUTPUT_DIR": str(directory), "RANK": str(rank)}),
            TrainerMon(path, params_have_main_grad=False) as monitor,
        ):
            monitor.set_monitor(root, grad_acc_steps=micro_steps, optimizer=optimizer)
            for step in range(steps):
                if change is not None and step == at:
                    change(model, optimizer)
                for _ in range(micro_steps):
                    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=data)
                    if share is not None:
                        tokens = tokens.chunk(share[1])[share[0]]
                    logits = root(tokens[:, :-1])
                    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                    (loss / micro_steps).backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads)
    return directory


def train_sharded(directory: Path, rank: int, world_size: int, rendezvous: Path) -> None:
    """One rank of an FSDP training, each rank with its share of every batch."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    try:
        train(directory, rank=rank, share=(rank, world_size), steps=4, dropout=False)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    train_sharded(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
