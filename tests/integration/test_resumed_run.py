"""A training that is resumed writes into the directory of the run before, and alerts as if it had not stopped. So do
alerts when the configuration changes while it runs."""

import json
import math
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


class Watched:
    """A training whose gradients are 10, or what a step is given, under a monitor."""

    def __init__(self, config: Path) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.monitor = TrainerMon(config, params_have_main_grad=False)
        self.monitor.set_monitor(self.model, 1, self.optimizer)

    def step(self, *gradients: float) -> None:
        for gradient in gradients:
            (self.model(torch.ones(1, 1)).sum() * gradient).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def steps_of_anomalies(output_dir: Path) -> list[tuple[int, str]]:
    return sorted({(record["step"], record["rule"]) for record in anomalies(output_dir).values()})


ALERT = {"rules": RULES, "dump": True}


def test_other_statistics_keep_anomalies_and_histories(write_config, output_dir):
    """Only what was seen under the statistics of before tells that 90 is too much."""
    watched = Watched(write_config(wg_distribution=True, ops=["norm", "max"], alert=ALERT))
    watched.step(10, 10, math.nan)
    watched.monitor.ops = ["norm", "min"]
    watched.step(90, math.nan)
    watched.monitor.ops = ["norm"]
    watched.step(10, math.nan)
    watched.monitor.close()
    expected = [(2, "AnomalyNan"), (3, "AnomalyTurbulence"), (4, "AnomalyNan"), (6, "AnomalyNan")]
    assert steps_of_anomalies(output_dir) == expected
    assert len(list(output_dir.glob("*-rank0-*"))) == 3
    # Another training of this process is a part of the same file, and compared with nothing.
    watched.monitor.set_monitor(watched.model, 1, watched.optimizer, start_iteration=100)
    watched.step(1000, math.nan)
    watched.monitor.close()
    assert steps_of_anomalies(output_dir) == [*expected, (101, "AnomalyNan")]
    # A new run begins anew.
    Watched(write_config(wg_distribution=True, ops=["norm"], alert=ALERT)).monitor.close()
    assert anomalies(output_dir) == {}


def test_stop_and_start_keep_anomalies(write_config, output_dir, monkeypatch):
    """After a pause gradients may have changed for good; after an edit without one they may not."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")

    def put(**fields: object) -> None:
        write_config(wg_distribution=True, ops=["norm"], **fields)

    path = write_config(wg_distribution=True, ops=["norm"], alert=ALERT, dynamic_on=True)
    (output_dir / "anomaly_detected" / "rank0").mkdir(parents=True)
    (output_dir / "anomaly_detected" / "rank0" / "anomaly.json").write_text('{"of another run": {}}')
    watched = Watched(path)
    watched.step(10, 10, math.nan)  # 0 is not collected
    put(alert=ALERT, dynamic_on=True, eps=0.5)
    watched.step(10, 90, math.nan)  # 3 by the old one
    put(alert=ALERT, dynamic_on=False)
    watched.step(10, math.nan)  # 6 by the old one
    put(alert=ALERT, dynamic_on=True)
    watched.step(math.nan, 1000, math.nan)  # 8 not collected
    watched.monitor.close()
    expected = [(2, "AnomalyNan"), (4, "AnomalyTurbulence"), (5, "AnomalyNan"), (10, "AnomalyNan")]
    assert steps_of_anomalies(output_dir) == expected
