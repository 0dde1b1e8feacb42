"""A training that is resumed writes into the directory of the run before, and alerts as if it had not stopped."""

import json
import shutil
from pathlib import Path

import torch

from msmon.pytorch import TrainerMon

from .reference_models import build

RULES = [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 3}}, {"rule_name": "AnomalyNan"}]


def train(config: Path, steps: range) -> None:
    """Batches grow slowly; step 9 is ten times what it should be, which only a history of many steps can tell."""
    model, _ = build("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer, start_iteration=steps.start)
        for step in steps:
            factor = 10.0 if step == 9 else 1.0 + step / 10
            (model(torch.ones(3, 4)).sum() * factor).backward()
            optimizer.step()
            optimizer.zero_grad()


def anomalies(output_dir: Path) -> dict[str, dict]:
    return json.loads((output_dir / "anomaly_detected" / "rank0" / "anomaly.json").read_text())


def test_same_files_and_same_alerts(write_config, output_dir):
    fields = {"wg_distribution": True, "step_count_per_record": 20, "alert": {"rules": RULES, "dump": True}}
    train(write_config(**fields), range(12))
    whole = anomalies(output_dir)
    assert {record["step"] for record in whole.values()} == {9}
    (first,) = output_dir.glob("*-rank0-*")
    expected = {path.name: path.read_text() for path in first.glob("grad_*.csv")}
    shutil.rmtree(output_dir)

    train(write_config(**fields), range(8))
    assert anomalies(output_dir) == {}
    (run_dir,) = output_dir.glob("*-rank0-*")
    stamp = run_dir.name.partition("-rank")[0]
    train(write_config(**fields, append_output=[stamp, stamp]), range(8, 12))
    assert list(output_dir.glob("*-rank0-*")) == [run_dir]
    assert {path.name: path.read_text() for path in run_dir.glob("grad_*.csv")} == expected
    assert anomalies(output_dir) == whole
