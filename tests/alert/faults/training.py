"""Trains one case under msmon and leaves its anomaly files behind."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msmon.pytorch import TrainerMon

from .faults import FAULTS, FIRST_STEP, LAST_STEP, Clock, Fault, Run
from .models import MODELS, loss_of

RECOMMENDED = [
    {"rule_name": "AnomalyNan"},
    {"rule_name": "AnomalyVanish"},
    {"rule_name": "AnomalyDead"},
    {"rule_name": "AnomalyConstant"},
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
FAULT_STEPS = range(FIRST_STEP, LAST_STEP)
HEALTHY_STEPS = 200
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


@dataclass(frozen=True)
class Snapshot:
    """Where a healthy training stands before a step. A faulty one that is healthy up to there may go on from it."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    histories: dict[str, Any]
    """Of the alert rules."""


def train(
    case: Case, out: Path, rank: int = 0, world: int = 1, snapshots: Mapping[int, Snapshot] | None = None
) -> dict[int, Snapshot]:
    """Trains, and writes `anomaly_detected/` and `fault.json` under `out/<case>`.

    A healthy run returns its snapshots. Given these, a faulty run of the same model and seed skips the steps in which
    the two are the same.
    """
    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(case.seed)
    make_model, make_data = MODELS[case.model]
    model = make_model()
    batches = make_data(np.random.default_rng([case.seed, rank]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clock, fault, begin, steps = Clock(), None, 0, HEALTHY_STEPS
    if case.fault:
        generator = np.random.default_rng([case.seed, sorted(FAULTS).index(case.fault)])
        fault = FAULTS[case.fault](Run(model, optimizer, rank, world), generator, clock)
        steps = fault.step + STEPS_AFTER + 1
        if rank == 0:
            (folder / "fault.json").write_text(json.dumps(_answer(fault)))
        if snapshots and not fault.from_start:
            begin = fault.step
            model.load_state_dict(snapshots[begin].model)
            optimizer.load_state_dict(copy.deepcopy(snapshots[begin].optimizer))  # else it shares the tensors
    for _ in range(begin):
        batches()
    wrapped = DistributedDataParallel(model, find_unused_parameters=case.model == "gpt") if world > 1 else model
    taken = {}
    with _monitored(wrapped, optimizer, folder, rank, begin) as monitor:
        if snapshots and begin:
            _rules(monitor).load_state_dict(snapshots[begin].histories)
        for step in range(begin, steps):
            if not fault and step in FAULT_STEPS:
                state = model.state_dict(), optimizer.state_dict(), _rules(monitor).state_dict()
                taken[step] = Snapshot(*copy.deepcopy(state))
            clock.step = step
            _one_step(wrapped, optimizer, batches(), fault, step)
    return taken


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


def _monitored(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, rank: int, begin: int) -> TrainerMon:
    """What a training script adds, with the output in `folder`."""
    config = folder / f"config{rank}.json"
    config.write_text(json.dumps(CONFIG))
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder)
    monitor = TrainerMon(str(config), params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer, start_iteration=begin)
    return monitor


def _rules(monitor: TrainerMon) -> Any:
    """The rules inside of a monitor, when they have seen all steps so far."""
    pipeline = monitor._session.pipeline
    pipeline.drain()
    return pipeline._alerts._monitor


def _answer(fault: Fault) -> dict[str, Any]:
    wanted = ("name", "step", "rank", "layers", "data_types", "size")
    return {name: value for name, value in asdict(fault).items() if name in wanted}
