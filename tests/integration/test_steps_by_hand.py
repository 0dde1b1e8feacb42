"""`monitor.step()`: loops in which nothing else says that the weights were updated. And several optimizers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from msmon.pytorch import TrainerMon

from .run_files import coverage, run_dir, table

CONFIG = {
    "targets": {"": {}},
    "all_xy": True,
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "ops": ["norm"],
    "format": "csv",
}


@pytest.fixture
def monitor(tmp_path, monkeypatch) -> TrainerMon:
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return TrainerMon(tmp_path / "config.json", params_have_main_grad=False)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def norms(directory: Path, data_type: str, name: str, steps: range) -> list[float]:
    return [float(table(run_dir(directory), data_type, step)[name]["norm"]) for step in steps]


def update(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad


def by_hand(model: nn.Module, step, seen: dict[str, list[float]]) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for _ in range(3):
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        seen.setdefault("before", []).append(model[0].weight.norm().item())
        seen.setdefault("gradient", []).append(model[0].weight.grad.norm().item())
        update(model)
        seen.setdefault("after", []).append(model[0].weight.norm().item())
        step()
        model.zero_grad()
        losses.append(loss.item())
    return losses


def test_updates_by_hand(tmp_path, monitor):
    seen: dict[str, list[float]] = {}
    expected = by_hand(mlp(), lambda: None, {})
    model = mlp()
    monitor.set_monitor(model, 1, None)
    assert by_hand(model, monitor.step, seen) == expected
    monitor.close()
    for data_type, values in (
        ("grad_reduced", seen["gradient"]),
        ("grad_unreduced", seen["gradient"]),
        ("param_origin", seen["before"]),
        ("param_updated", seen["after"]),
    ):
        assert norms(tmp_path, data_type, "0.weight", range(3)) == pytest.approx(values, rel=1e-5), data_type
    assert table(run_dir(tmp_path), "actv", 2)
    reasons = {entry["data_type"]: entry["reason"] for entry in coverage(tmp_path)["missing"]}
    assert reasons["exp_avg"] == "no optimizer was given"
    assert reasons.keys() == {"exp_avg", "exp_avg_sq"} | ({"actv_grad"} & reasons.keys())


def test_an_optimizer_that_never_steps_as_a_whole(tmp_path, monitor):
    """The first step does not know yet that the weights before it have to be read at its beginning."""
    model = mlp()
    monitor.set_monitor(model, 1, torch.optim.SGD(model.parameters(), lr=0.1))
    seen: dict[str, list[float]] = {}
    by_hand(model, monitor.step, seen)
    monitor.close()
    assert norms(tmp_path, "param_updated", "0.weight", range(3)) == pytest.approx(seen["after"], rel=1e-5)
    assert norms(tmp_path, "param_origin", "0.weight", range(1, 3)) == pytest.approx(seen["before"][1:], rel=1e-5)
    assert not (run_dir(tmp_path) / "param_origin_0-0.csv").exists()


def test_optimizers_that_take_turns(tmp_path, monitor):
    """Each of the optimizers steps several times a round, and a round is a step."""
    model = mlp()
    optimizers = [torch.optim.Adam(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.1)]
    monitor.set_monitor(model, 4, None)
    consumed = []
    for _ in range(3):
        for optimizer in optimizers:
            for _ in range(2):
                model.zero_grad()
                model(torch.randn(5, 4)).square().mean().backward()
                consumed.append(model[0].weight.grad.norm().item())
                optimizer.step()
        monitor.step()
    monitor.close()
    assert norms(tmp_path, "grad_reduced", "0.weight", range(3)) == pytest.approx(consumed[1::4], rel=1e-5)
    origin = norms(tmp_path, "param_origin", "2.weight", range(3))
    assert origin[1:] == norms(tmp_path, "param_updated", "2.weight", range(2))


def test_optimizers_in_hooks_without_a_dummy(tmp_path, monitor):
    model = mlp()
    optimizers = {p: torch.optim.Adam([p], lr=0.1) for p in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    monitor.set_monitor(model, 1, None)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        monitor.step()
    monitor.close()
    assert all(norm > 0 for norm in norms(tmp_path, "grad_reduced", "0.weight", range(3)))
    assert len(norms(tmp_path, "exp_avg", "0.weight", range(1, 3))) == 2
    assert coverage(tmp_path)["missing"] == [e for e in coverage(tmp_path)["missing"] if e["data_type"] == "actv_grad"]


def test_both_ways_at_once(monitor):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monitor:
        monitor.set_monitor(model, 1, optimizer)
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        with pytest.raises(ValueError, match=r"seen and counted already.*optimizer=None"):
            monitor.step()


def test_without_a_training(monitor):
    monitor.step()
    monitor.close()
    monitor.step()


def test_several_optimizers(tmp_path, monitor):
    model = mlp()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(model[2].parameters(), lr=0.1),
    ]
    monitor.set_monitor(model, 1, optimizer=optimizers)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    monitor.close()
    assert len(norms(tmp_path, "exp_avg", "2.weight", range(1, 3))) == 2
    assert len(norms(tmp_path, "state", "0.weight.momentum_buffer", range(1, 3))) == 2
    assert {entry["name"] for entry in coverage(tmp_path)["missing"]} & {"2.weight"} == set()


@pytest.mark.parametrize(("optimizer", "message"), [([], "an empty list"), ([object()], "must have a method step")])
def test_what_is_no_optimizer(monitor, optimizer, message):
    with pytest.raises(TypeError, match=message):
        monitor.set_monitor(mlp(), 1, optimizer)
