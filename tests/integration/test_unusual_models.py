"""Models and tensors out of the ordinary, monitored with everything: the training is what it is without, bit by bit,
and the files have what can be had."""

from __future__ import annotations

import csv
import json
import logging
import warnings

import pytest
import torch
from torch import nn

from msmon.pytorch import TrainerMon

EVERYTHING = {
    "wg_distribution": True,
    "mv_distribution": True,
    "mg_direction": True,
    "ur_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
    "ops": ["norm"],
    "format": ["csv", "tensorboard"],
}


def train(model, batch, monitor=None, steps=3):
    """Losses and final weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    if monitor is not None:
        monitor.set_monitor(model, 1, optimizer)
    losses = []
    for _ in range(steps):
        loss = model(batch).abs().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def compare(make, batch, monitor, caplog) -> None:
    """Train twice, and close the monitor."""
    torch.manual_seed(0)
    losses, weights = train(make(), batch)
    torch.manual_seed(0)
    seen_losses, seen_weights = train(make(), batch, monitor)
    monitor.close()
    assert seen_losses == losses
    assert all(map(torch.equal, seen_weights, weights))
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def run_dir(output_dir):
    """Finds the only run."""
    return lambda: next(output_dir.glob("*-rank0-*"))


def names(run_dir, data_type: str, step: int = 0) -> list[str]:
    with (run_dir / f"{data_type}_{step}-{step}.csv").open() as file:
        return [row["name"] for row in csv.DictReader(file)]


def missing(run_dir) -> dict[tuple[str, str], str]:
    entries = json.loads((run_dir / "coverage.json").read_text())["missing"]
    return {(entry["data_type"], entry["name"]): entry["reason"] for entry in entries}


class Spectral(nn.Module):
    """Whose weight and activations are complex."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.inverse = Inverse()
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.inverse(torch.fft.fft(self.first(x)) @ self.weight))


class Inverse(nn.Module):
    def forward(self, x):
        return torch.fft.ifft(x).real


def test_complex_weights_and_activations(write_config, run_dir, caplog):
    every = {kind: ["", "first", "inverse"] for kind in ("moe_router_weight_hook", "moe_router_logit_hook")}
    fields = {**EVERYTHING, "l2_targets": {"linear_hook": ["", "first"], **every}}
    monitor = TrainerMon(write_config(**fields), params_have_main_grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(Spectral, torch.randn(3, 4), monitor, caplog)
    weights = ["weight", "first.weight", "first.bias", "last.weight", "last.bias"]
    for data_type in ("grad_reduced", "param_updated", "exp_avg", "exp_avg_sq"):
        assert names(run_dir(), data_type, 1) == weights
    # Statistics are those of the absolute values; what has no meaning for complex numbers has no row.
    assert names(run_dir(), "other", 1) == weights[1:]
    assert "inverse.input" in names(run_dir(), "actv")
    assert "inverse.input" in names(run_dir(), "actv_grad")
    assert names(run_dir(), "linear_hook", 1) == ["first.linear"]
    assert names(run_dir(), "moe_router_weight_hook", 1) == ["first.moe_router"]
    assert names(run_dir(), "moe_router_logit_hook", 1) == ["first.moe_router", "inverse.moe_router", ".moe_router"]
    reasons = missing(run_dir())
    assert reasons["other", "weight"] == "a complex gradient has no sign"
    assert "complex64 are complex" in reasons["linear_hook", ".linear"]
    assert set(reasons) == {
        ("other", "weight"),
        ("adam_histogram", "weight"),
        ("linear_hook", ".linear"),
        ("moe_router_weight_hook", ".moe_router"),
        ("moe_router_weight_hook", "inverse.moe_router"),
    }


def test_lazy_modules(write_config, run_dir, caplog):
    def make():
        return nn.Sequential(nn.LazyConv1d(3, 2), nn.Flatten(), nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 2))

    monitor = TrainerMon(write_config(**EVERYTHING), params_have_main_grad=False)
    compare(make, torch.randn(3, 2, 5), monitor, caplog)
    every = [f"{module}.{name}" for module in (0, 2, 4) for name in ("weight", "bias")]
    tensors = json.loads((run_dir() / "run.json").read_text())["tensors"]
    assert [entry["name"] for entry in tensors] == every
    assert next(entry["shape"] for entry in tensors if entry["name"] == "2.weight") == [4, 12]
    for data_type in ("grad_reduced", "grad_unreduced", "param_updated"):
        assert sorted(names(run_dir(), data_type)) == sorted(every)
    assert missing(run_dir()) == {}


@pytest.mark.skipif(not hasattr(torch, "jagged"), reason="jagged nested tensors came with torch 2.2")
def test_jagged_nested_tensors(write_config, run_dir, caplog):
    parts = [torch.randn(2, 4), torch.randn(5, 4)]

    class Joins(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

        def forward(self, batch):
            return self.layers(batch).values()

    monitor = TrainerMon(write_config(**EVERYTHING, ndigits=12), params_have_main_grad=False)
    compare(Joins, torch.nested.nested_tensor(parts, layout=torch.jagged), monitor, caplog)
    assert missing(run_dir()) == {}
    with (run_dir() / "actv_0-0.csv").open() as file:
        norms = {row["name"]: float(row["norm"]) for row in csv.DictReader(file)}
    assert norms["layers.0.input"] == pytest.approx(torch.cat(parts).norm().item(), rel=1e-6)
    assert norms["layers.2.output"] == pytest.approx(norms[".output"], rel=1e-9)
    assert {"layers.0.output", "layers.1.input", "layers.2.output"} <= set(names(run_dir(), "actv_grad"))


class Locked(torch.Tensor):
    """As third parties make them: its values are somewhere else, and its own method of getting them fails."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.size(), dtype=values.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError

    def dequantize(self):
        raise RuntimeError("not on this device")


class Locks(nn.Module):
    def forward(self, x):
        return x, Locked(x.detach()), torch.ones(2, dtype=torch.bool).to("meta")


class HasLocked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.locks = nn.Linear(3, 4), Locks()

    def forward(self, x):
        return self.locks(self.first(x))[0]


def test_what_has_no_statistics_says_why(write_config, output_dir, caplog):
    def make():
        return HasLocked()

    monitor = TrainerMon(write_config(xy_distribution=True, all_xy=True, ops=["norm"]), params_have_main_grad=False)
    compare(make, torch.randn(2, 3), monitor, caplog)
    (run_dir,) = output_dir.iterdir()
    coverage = json.loads((run_dir / "coverage.json").read_text())
    assert {entry["name"]: entry["reason"] for entry in coverage["missing"] if entry["data_type"] == "actv"} == {
        "locks.output_1": "a Locked whose values cannot be had: RuntimeError: not on this device",
        "locks.output_2": "a tensor on the meta device holds no data",
    }
    assert len((run_dir / "actv_2-2.csv").read_text().splitlines()) == 7
