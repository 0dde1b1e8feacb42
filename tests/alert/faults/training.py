"""Trains one case under msmon and leaves its anomaly files behind."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msmon.pytorch import TrainerMon

from .faults import FAULTS, Clock, Fault, Run
from .models import MODELS, loss_of

RECOMMENDED = [
    {"rule_name": "AnomalyNan"},
    {"rule_name": "AnomalyVanish"},
    {"rule_name": "AnomalyDead"},
    {"rule_name": "AnomalySpike"},
    {"rule_name": "AnomalyFrozen"},
    {"rule_name": "AnomalyOverwritten"},
]
"""The rule set that the README of msmon-alert recommends; a test holds the two together."""

CONFIG: dict[str, Any] = {
    "param_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "min", "max", "mean", "zeros", "nans"],
    "format": "api",
    "alert": {"rules": RECOMMENDED, "dump": True},
}
FAULTY_STEPS, HEALTHY_STEPS = 100, 200
STEPS_AFTER = 3
"""So many steps are trained after the one of the fault: the bench asks what is found within two."""


@dataclass(frozen=True)
class Case:
    """One training: `fault` is a key of `FAULTS`, or "" for a healthy run."""

    model: str
    fault: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.fault or 'healthy'}-{self.seed}"


def train(case: Case, out: Path, rank: int = 0, world: int = 1) -> None:
    """Trains, and writes `anomaly_detected/` and `fault.json` under `out/<case>`."""
    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(case.seed)
    make_model, make_data = MODELS[case.model]
    model = make_model()
    batches = make_data(np.random.default_rng([case.seed, rank]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clock, fault = Clock(), None
    if case.fault:
        generator = np.random.default_rng([case.seed, sorted(FAULTS).index(case.fault)])
        fault = FAULTS[case.fault](Run(model, optimizer, rank, world), generator, clock)
        if rank == 0:
            (folder / "fault.json").write_text(json.dumps(_answer(fault)))
    wrapped = DistributedDataParallel(model, find_unused_parameters=case.model == "gpt") if world > 1 else model
    steps = fault.step + STEPS_AFTER + 1 if fault else HEALTHY_STEPS
    with _monitored(wrapped, optimizer, folder, rank):
        for step in range(steps):
            clock.step = step
            _one_step(wrapped, optimizer, batches(), fault, step)


def _one_step(model: nn.Module, optimizer: Any, batch: Any, fault: Fault | None, step: int) -> None:
    inputs, targets = batch
    if fault:
        for act in fault.before_step:
            act(step)
        if fault.change_batch:
            inputs = fault.change_batch(step, inputs)
    optimizer.zero_grad()
    loss_of(model, inputs, targets).backward()
    optimizer.step()


def _monitored(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, rank: int) -> Any:
    """What a training script adds, with the output in `folder`."""
    config = folder / f"config{rank}.json"
    config.write_text(json.dumps(CONFIG))
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder)
    monitor = TrainerMon(str(config), params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    return monitor


def _answer(fault: Fault) -> dict[str, Any]:
    wanted = ("name", "step", "rank", "layers", "data_types", "size")
    return {name: value for name, value in asdict(fault).items() if name in wanted}


def train_all(cases: list[Case], out: Path, rank: int = 0, world: int = 1, rendezvous: Path | None = None) -> None:
    """All cases one after the other; with `world` > 1 as one of that many processes."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    for case in cases:
        train(case, out, rank, world)
    if world > 1:
        dist.destroy_process_group()
