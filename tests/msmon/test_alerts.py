"""Alert rules in a monitored training."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import msmon_alert
from msmon.pytorch import TrainerMon


def test_a_rule_that_fails_is_told_and_the_others_go_on(write_config, output_dir, monkeypatch):
    """The line in the log is gone when the job is; ``coverage.json`` is where one looks for what is missing."""
    check = msmon_alert.AnomalyTurbulence.check

    def fails_in_step_1(self, batch, memory):
        if batch.step == 1:
            raise ZeroDivisionError("float division by zero")
        return check(self, batch, memory)

    monkeypatch.setattr(msmon_alert.AnomalyTurbulence, "check", fails_in_step_1)
    rules = [
        {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
        {"rule_name": "AnomalyNan", "args": {"threshold": 1e-30}},
    ]
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = write_config(wg_distribution=True, format="csv", ops=["norm"], alert={"rules": rules, "dump": True})
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(3):
            model(torch.rand(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (run_dir,) = output_dir.glob("*-rank0-*")
    notes = json.loads((run_dir / "coverage.json").read_text())["notes"]
    assert notes == ["AnomalyTurbulence: switched off after ZeroDivisionError: float division by zero"]
    records = json.loads((output_dir / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    assert {(record["step"], record["rule"]) for record in records.values()} == {(s, "AnomalyNan") for s in range(3)}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_weight_that_the_script_freezes_is_no_anomaly(write_config, output_dir, frozen):
    """One that rests although it is to be trained is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = {"rules": [{"rule_name": "AnomalyFrozen"}], "dump": True}
    config = write_config(param_distribution=True, format="csv", ops=["norm", "mean"], alert=rules)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(30):
            if step == 24 and frozen:
                model[0].requires_grad_(False)
            model(torch.rand(3, 4)).sum().backward()
            if step >= 24 and not frozen:
                model[0].weight.grad = model[0].bias.grad = None
            optimizer.step()
            optimizer.zero_grad()
    records = json.loads((output_dir / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    expected = (
        set()
        if frozen
        else {(step, f"0:0.{name}/rank0/param_updated") for step in range(25, 30) for name in ("weight", "bias")}
    )
    assert {(record["step"], record["tag_name"]) for record in records.values()} == expected
