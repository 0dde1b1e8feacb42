"""A small training with an optimizer of anybody's, monitored and not, and what it should have left."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch import nn

from msmon.pytorch import TrainerMon

STEPS = 4
CONFIG = {
    "wg_distribution": True,
    "mv_distribution": True,
    "mg_direction": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm"],
    "ndigits": 12,
    "step_count_per_record": STEPS,
}
MOMENTS = ("exp_avg", "exp_avg_sq")
Row = tuple[str, str, int]
"""Data type, name, step."""


def _as_it_lies(state: Mapping[Any, Any], path: str) -> torch.Tensor | None:
    """The tensor at a path of keys and attributes."""
    found: Any = state
    for part in path.split("/"):
        if isinstance(found, Mapping):
            found = next((value for key, value in found.items() if str(key) == part), None)
        elif isinstance(found, list | tuple):
            found = found[int(part)] if len(found) > int(part) else None
        else:
            found = getattr(found, part, None)
    return found if isinstance(found, torch.Tensor) else None


@frozen(kw_only=True)
class Case:
    """An optimizer, and by the keys of its state what its tensors are."""

    package: str
    make: Callable[[Any, nn.Module], Any]
    """Of the imported package and the model."""
    tensors: Mapping[str, str]
    """Path in the state (`0/Q/1`) to `exp_avg`, `exp_avg_sq` or `state`."""
    states: Callable[[Any], Iterable[Mapping[Any, Any]]] = lambda optimizer: [optimizer.state]
    read: Callable[[Mapping[Any, Any], str], torch.Tensor | None] = _as_it_lies
    """The values at a path, by the package's own means."""
    momentum: str | None = None
    """Path of what `mg_direction` compares the gradient with, where that is not the `exp_avg`."""
    inner: Callable[[Any], Any] | None = None
    """The optimizer inside that updates the weights, by gradients that the outer one has changed."""
    reasons: Mapping[tuple[str, str], str] = field(factory=dict)
    """(data type, name) to the reason; the default names what the state has."""


@frozen(kw_only=True)
class Outcome:
    """What a training left."""

    losses: list[float]
    weights: list[bytes]
    rows: dict[Row, float]
    """What should have rows in `exp_avg`, `exp_avg_sq`, `state` and `other`."""
    keys: dict[str, list[str]]
    """Parameter to the keys of its states at the end."""


def build() -> nn.Sequential:
    """Large enough for states to be quantised: one matrix has 4096 elements."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8))


def train(case: Case, package: Any, config: Path | None = None) -> Outcome:
    """Train from fixed seeds; `config`: monitored."""
    model = build()
    optimizer = case.make(package, model)
    monitor = None
    if config is not None:
        monitor = TrainerMon(str(config), params_have_main_grad=False)
        monitor.set_monitor(model, 1, optimizer)
    torch.manual_seed(1)
    losses = []
    expected: dict[Row, float] = {}
    step = 0
    if case.inner is not None:
        consumed = case.inner(optimizer)
        consumed.register_step_pre_hook(lambda *_: expected.update(_rows(case, model, optimizer, step)))
    for step in range(STEPS):
        loss = model(torch.randn(16, 64)).square().mean() * 10
        loss.backward()
        losses.append(loss.item())
        if case.inner is None:
            expected |= _rows(case, model, optimizer, step)
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
    if monitor is not None:
        monitor.close()
    keys = {
        name: [key for state in case.states(optimizer) for key, value in dict(state.get(parameter, {})).items()
               if key != "step" and value is not None]
        for name, parameter in model.named_parameters()
    }  # fmt: skip
    weights = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    return Outcome(losses=losses, weights=weights, rows=expected, keys=keys)


def _rows(case: Case, model: nn.Module, optimizer: Any, step: int) -> dict[Row, float]:
    found: dict[Row, float] = {}
    for name, parameter in model.named_parameters():
        # `get`: a look-up would make an entry in the optimizer.
        states = [state.get(parameter) or {} for state in case.states(optimizer)]
        momentum = None
        for path, kind in case.tensors.items():
            tensor = next((one for state in states if (one := case.read(state, path)) is not None), None)
            # One number says nothing of a parameter that has several.
            if tensor is None or (tensor.numel() == 1 and kind == "state"):
                continue
            found[kind, name if kind in MOMENTS else f"{name}.{path.replace('/', '.')}", step] = _norm(tensor)
            if path == case.momentum or kind == "exp_avg":
                momentum = tensor
        agreement = _agreement(parameter.grad, momentum, step)
        if agreement is not None:
            found["other", name, step] = agreement
    return found


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().norm())


def _agreement(gradient: torch.Tensor, momentum: torch.Tensor | None, step: int) -> float | None:
    if step == 0 and momentum is None:
        return 1.0
    if momentum is None or momentum.numel() != gradient.numel():
        return None
    return float((gradient.sign() * momentum.reshape(gradient.shape).sign()).double().mean() + 1) / 2


def written(output_dir: Path) -> tuple[dict[Row, float], dict[str, Any]]:
    """What the monitor wrote: the norms of all rows, and the coverage."""
    (run_dir,) = output_dir.glob("*-rank0-*")
    rows = {}
    for path in run_dir.glob(f"*_0-{STEPS - 1}.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                data_type = path.name.rpartition("_")[0]
                rows[data_type, row["name"], int(row["step"])] = float(row["norm"])
    return rows, json.loads((run_dir / "coverage.json").read_text())
