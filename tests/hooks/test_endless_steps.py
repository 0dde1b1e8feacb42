"""Loops in which no step is seen: memory stays bounded, and one warning says what to do."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from msmon.pytorch import TrainerMon

from .recorder import Monitored

EVERYTHING = {
    "weight_gradients": True,
    "each_micro_step": True,
    "moments": True,
    "weights": True,
    "activations": True,
    "activation_gradients": True,
}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def updated_by_hand(model: nn.Module, times: int) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for _ in range(times):
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    return losses


def test_a_loop_that_never_steps_takes_no_memory(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    config = {"targets": {"": {}}, "all_xy": True, "xy_distribution": True, "wg_distribution": True, "format": "csv"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = updated_by_hand(mlp(), 2000)
    model = mlp()
    monitor = TrainerMon(tmp_path / "config.json", params_have_main_grad=False)
    monitor.set_monitor(model, 1, torch.optim.SGD(model.parameters(), lr=0.1))
    collector = monitor._session.collector
    sizes = []
    record = collector.record
    monkeypatch.setattr(collector, "record", lambda *args: (record(*args), sizes.append(len(collector._rows))))
    assert updated_by_hand(model, 2000) == expected
    assert 0 < max(sizes) < 64 * 20
    assert len(sizes) < 64 * 20
    assert collector._rows == {}
    assert collector.so_far()[2].shape[0] == 0
    monitor.close()
    warnings = [one.getMessage() for one in caplog.records if "monitor.step()" in one.getMessage()]
    assert len(warnings) == 1
    assert "64 training forwards and no step" in warnings[0]


def test_gradients_alone_of_a_model_that_is_never_called_as_a_whole():
    model = mlp()
    with Monitored(
        model, torch.optim.SGD(model.parameters(), lr=0.1), weight_gradients=True, each_micro_step=True
    ) as seen:
        for _ in range(200):
            model[2](model[0](torch.randn(5, 4))).sum().backward()
        assert len(seen.recorder.norms) <= 65 * 4
        assert not seen.recorder.rows
        assert len(seen.notes) == 1


def test_what_comes_after_a_long_step_is_recorded():
    """A recurrent network may be called a hundred times in each step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, **EVERYTHING) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            sum(model(torch.randn(5, 4)).square().mean() for _ in range(100)).backward()
            optimizer.step()
        assert [(event.step, event.sampled) for event in seen.recorder.events] == [(0, False), (1, True), (2, True)]
        assert not [row for row in seen.recorder.rows if row[2] == 0]
        assert ("actv", "2.output", 1, 99) in seen.recorder.rows
        assert len(seen.notes) == 1


@pytest.mark.parametrize("grad_acc_steps", [1, 20])
def test_as_many_as_a_step_may_have(grad_acc_steps):
    from msmon_hooks import Clock

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clock = Clock(grad_acc_steps=grad_acc_steps)
    with Monitored(model, optimizer, clock=clock, activations=True) as seen:
        for _ in range(max(64, 8 * grad_acc_steps)):
            model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        assert seen.recorder.events[0].sampled
        assert not seen.notes


def test_closures_that_are_called_often():
    model = mlp()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1e-3, max_iter=80, max_eval=80, tolerance_grad=0, tolerance_change=0
    )
    batch, calls = torch.randn(5, 4), []

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        calls.append(loss.item())
        return loss

    with Monitored(model, optimizer, **EVERYTHING) as seen:
        optimizer.step(closure)
        assert len(calls) == 80
        assert seen.recorder.events[0].sampled
        assert not seen.notes
