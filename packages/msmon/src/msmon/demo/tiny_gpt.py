"""Train a GPT of 1 M parameters on real text and watch it with msmon: the whole example.

    python examples/tiny_gpt.py [--no-fault] [--steps 60] [--output DIR]

The monitor is attached by two lines in `train`; the rest is an ordinary training loop. At a known step the
weight of one attention projection is multiplied by 10,000, as a flipped bit or a bad checkpoint would do.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

from msmon.config import output_dir
from msmon.demo.text import batches, tokens
from msmon.pytorch import TrainerMon

CONFIG = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "mv_distribution": True,
    "param_distribution": True,
    "ops": ["norm", "max", "nans", "zeros"],
    "alert": {
        "rules": [
            {"rule_name": "AnomalyNan"},
            {"rule_name": "AnomalyTurbulence", "args": {"threshold": 20}},
        ],
        "dump": True,
    },
}
"""What the demo monitors: everything, at every step."""

WIDTH, HEADS, LAYERS, CONTEXT, BATCH, VOCABULARY = 144, 4, 4, 64, 16, 256


@frozen(kw_only=True)
class Fault:
    """The weight of one layer is multiplied by a factor just before a step's forward."""

    layer: str = "layers.2.attn.proj"
    step: int = 40
    factor: float = 1e4

    def inject(self, model: nn.Module, step: int) -> None:
        """Do it, if this is the step."""
        if step == self.step:
            with torch.no_grad():
                model.get_parameter(f"{self.layer}.weight").mul_(self.factor)


class Attention(nn.Module):
    """Causal self-attention: [batch, time, width] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """One transformer layer, normalised before attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    """Bytes [batch, time] to logits [batch, time, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def train(
    config_path: Path, *, steps: int = 60, fault: Fault | None = None, on_step: Callable[[int, float], None] = print
) -> list[float]:
    """Train and return the losses; `on_step(step, loss)` is called after each step."""
    torch.manual_seed(0)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with TrainerMon(config_path, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        for step, batch in enumerate(batches(tokens(), steps=steps, size=BATCH, length=CONTEXT, seed=1)):
            if fault is not None:
                fault.inject(model, step)
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            on_step(step, losses[-1])
    return losses


def write_config(directory: Path) -> Path:
    """Write the demo's configuration into `directory` and have the monitor write there too."""
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory)
    path = directory / "monitor_config.json"
    path.write_text(json.dumps(CONFIG, indent=2))
    return path


def main() -> None:
    """The example as a script: plain lines, no decoration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-fault", action="store_true", help="a healthy run")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, default=output_dir())
    arguments = parser.parse_args()
    fault = None if arguments.no_fault else Fault()
    train(write_config(arguments.output), steps=arguments.steps, fault=fault)


if __name__ == "__main__":
    main()
