"""The second form with MindSpore."""

import csv

import pytest

from msmon.monitor_v2 import TrainerMonitorV2

from .mindspore_models import build, train


def test_files_of_the_second_form(write_config, tmp_path):
    monitors = {
        "module": {"ops": ["norm"]},
        "weight_grad": {"enabled": True, "ops": ["max", "norm"]},
        "optimizer": {"enabled": True},
        "param": {"enabled": True},
    }
    model, optimizer = build("mlp")
    monitor = TrainerMonitorV2(write_config(framework="ms", output_dir=str(tmp_path), monitors=monitors))
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=1)
    train("mlp", model, optimizer, 1)
    monitor.stop()
    found = {}
    for name in ("module", "weight_grad", "optimizer", "param"):
        with (tmp_path / f"rank_0/{name}_step1-1.csv").open(newline="") as file:
            found[name] = list(csv.DictReader(file))
    assert {row["scope"] for row in found["module"]} == {"forward", "backward"}
    assert {row["scope"] for row in found["optimizer"]} == {"exp_avg", "exp_avg_sq"}
    reduced = {row["module_name"]: row for row in found["weight_grad"] if row["scope"] == "reduced"}
    unreduced = {row["module_name"]: row for row in found["weight_grad"] if row["scope"] == "unreduced"}
    assert reduced.keys() == unreduced.keys() == {weight.name for weight in optimizer.parameters}
    assert all(float(reduced[name]["norm"]) == pytest.approx(float(unreduced[name]["norm"])) for name in reduced)
    before, after = (
        [row for row in found["param"] if row["scope"] == f"param_{when}"] for when in ("origin", "updated")
    )
    assert any(one["norm"] != other["norm"] for one, other in zip(before, after, strict=True))
