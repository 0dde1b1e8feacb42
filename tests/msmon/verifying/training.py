"""Small trainings in this process, recorded as users record them; a place for whatever a program may do in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from msmon.config.values import OPS
from msmon.pytorch import TrainerMon

STEPS = 12
CONFIG: dict[str, Any] = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "format": ["parquet"],
    "ops": ["norm", "min", "max", "mean", "shape", *(["fingerprint"] if "fingerprint" in OPS else [])],
}


class TwoHeads(nn.Module):
    """The second head is used at odd steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.first = nn.Linear(16, 4)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        body = torch.tanh(self.body(x))
        return self.second(body) + self.first(body) if step % 2 else self.first(body)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """`train(...)` trains and gives the output directory, another one each time."""
    numbers = itertools.count()
    monkeypatch.delenv("RANK", raising=False)

    def run(**how: Any) -> Path:
        output = tmp_path / f"run {next(numbers)}"
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(output))
        _train(tmp_path / "config.json", **how)
        return output

    return run


Place = Callable[[nn.Module, torch.optim.Optimizer, int], object]


def _nothing(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    pass


def _train(
    path: Path,
    *,
    model: Callable[[], nn.Module] = TwoHeads,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.AdamW(model.parameters(), 1e-2),
    data: Callable[[int], torch.Tensor] = lambda step: torch.randn(4, 8, generator=torch.Generator().manual_seed(step)),
    before_step: Place = _nothing,
    before_update: Place = _nothing,
    after_update: Place = _nothing,
    grad_acc_steps: int = 1,
    steps: int = STEPS,
    **config: Any,
) -> None:
    torch.manual_seed(0)
    path.write_text(json.dumps({**CONFIG, **config}))
    trained = model()
    stepping = optimizer(trained)
    with TrainerMon(str(path), params_have_main_grad=False) as monitor:
        monitor.set_monitor(trained, grad_acc_steps=grad_acc_steps, optimizer=stepping)
        for step in range(steps):
            before_step(trained, stepping, step)
            for micro_step in range(grad_acc_steps):
                output = trained(data(step * grad_acc_steps + micro_step), step)
                (output.float().pow(2).mean() / grad_acc_steps).backward()
            before_update(trained, stepping, step)
            stepping.step()
            after_update(trained, stepping, step)
            stepping.zero_grad()
