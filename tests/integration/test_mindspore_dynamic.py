"""Dynamic start and stop of a MindSpore training, by a file that is edited while it runs."""

import csv
import json

import mindspore

from msmon.mindspore import TrainerMon

from .mindspore_models import batches, build, weight_bytes

CONFIG = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "ops": ["norm", "max"],
}
STEPS = 10


def trained(config=None, edit=lambda step: None):
    """Losses and weights, bit by bit. With a configuration file the training is monitored; ``edit`` is called before
    each step."""
    model, optimizer = build("mlp")
    monitor = None
    if config is not None:
        monitor = TrainerMon(config)
        monitor.set_monitor(model, 1, optimizer)
    batch = batches("mlp")[0]
    grad = mindspore.value_and_grad(lambda: model(batch).pow(2).mean(), None, optimizer.parameters)
    losses = []
    for step in range(STEPS):
        edit(step)
        loss, gradients = grad()
        optimizer(gradients)
        losses.append(loss.asnumpy().tobytes())
    if monitor is not None:
        monitor.close()
    return losses, weight_bytes(model)


def rows_of(run_dir):
    """(data type, step, name) -> the row."""
    found = {}
    for path in run_dir.glob("*_*-*.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                key = (path.name.rpartition("_")[0], int(row.pop("step")), row["name"])
                assert key not in found
                found[key] = row
    return found


def test_start_stop_and_start_again(tmp_path, write_config, monkeypatch):
    alone = trained()
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "static"))
    assert trained(write_config(**CONFIG)) == alone
    (run_dir,) = (tmp_path / "static").glob("*-rank0-*")
    static = rows_of(run_dir)

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "dynamic"))
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = write_config(**CONFIG, dynamic_on=False)
    edits = {
        1: {**CONFIG, "dynamic_on": True},
        3: {**CONFIG, "dynamic_on": False},
        5: {**CONFIG, "dynamic_on": True, "step_interval": 2, "collect_times": 2},
    }

    def edit(step):
        if step in edits:
            path.write_text(json.dumps(edits[step]))

    assert trained(path, edit) == alone
    periods = sorted(
        (rows_of(run_dir) for run_dir in (tmp_path / "dynamic").glob("*-rank0-*")),
        key=lambda rows: min(step for _, step, _ in rows),
    )
    assert [sorted({step for _, step, _ in rows}) for rows in periods] == [[2, 3], [6, 8]]
    for rows in periods:
        steps = {step for _, step, _ in rows}
        assert rows == {key: row for key, row in static.items() if key[1] in steps}
        assert {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "param_updated"} <= {
            data_type for data_type, *_ in rows
        }
    assert json.loads(path.read_text()) == {**edits[5], "dynamic_on": False}
