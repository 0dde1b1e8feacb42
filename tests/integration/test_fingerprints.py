"""`fingerprint` among `ops`: from tensors of a training to every kind of file, and to the commands that read them."""

import copy

import numpy as np
import pytest
import torch

import msmon_io
from msmon.cli import main
from msmon.heat_maps import histograms
from msmon.monitor_v2 import TrainerMonitorV2
from msmon.pytorch import TrainerMon
from msmon_hooks import TensorRef
from msmon_stats import fingerprints, partial_many
from msmon_stats.torch import PartialBuffer

from .reference_models import build

OPS = ["norm", "fingerprint", "shape"]
EVERYTHING = dict.fromkeys(("wg_distribution", "mv_distribution", "param_distribution", "xy_distribution"), True)


def text_of(*tensors):
    return fingerprints(partial_many([tensor.detach() for tensor in tensors], fingerprint=True).numpy())


def train(model, optimizer, steps, before_step=lambda: None):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for _ in range(2):
            model(torch.randn(5, 4, generator=generator)).pow(2).mean().backward()
        before_step()
        optimizer.step()
        optimizer.zero_grad()


def tables(folder):
    """Data type and step to rows: name and micro-step to the cells."""
    found = {}
    for path in sorted(folder.glob("*-rank0-*/*.csv")):
        for table in msmon_io.read_csv(path):
            micro = table.micro_steps or [None] * len(table)
            cells = [dict(zip(table.number_ops, row, strict=True)) for row in table.rows()]
            for at, row in enumerate(cells):
                row |= {op: texts[at] for op, texts in table.text.items()}
            rows = found.setdefault((table.data_type, table.step), {})
            rows |= dict(zip(zip(table.names, micro, strict=True), cells, strict=True))
    return found


@pytest.fixture
def trained(write_config, output_dir):
    """Three steps with all formats; the weights, gradients and moments before each update, and the model at the end."""
    model, optimizer = build("mlp")
    formats = ["csv", "tensorboard", "parquet"]
    alert = {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": True}
    config = write_config(**EVERYTHING, all_xy=True, ops=OPS, format=formats, alert=alert, ur_distribution=True)
    seen = []

    def look():
        seen.append(
            [
                (name, one.clone(), one.grad.clone(), copy.deepcopy(optimizer.state.get(one, {})))
                for name, one in model.named_parameters()
            ]
        )

    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 2, optimizer)
        train(model, optimizer, 3, look)
    return seen, model


def test_every_row_has_the_fingerprint_of_its_tensor(trained, output_dir):
    seen, model = trained
    rows = tables(output_dir)
    for step, weights in enumerate(seen):
        for name, weight, gradient, state in weights:
            moments = [kind for kind in ("exp_avg", "exp_avg_sq") if state]
            kinds = ["param_origin", "grad_reduced", *moments]
            found = [rows[kind, step][name, None]["fingerprint"] for kind in kinds]
            assert found == text_of(weight, gradient, *(state[kind] for kind in moments))
    for name, weight in model.named_parameters():
        assert [rows["param_updated", 2][name, None]["fingerprint"]] == text_of(weight)
    # What goes into one module twice is the same.
    assert rows["actv", 0]["fc1.output", 0]["fingerprint"] == rows["actv", 0]["relu.input", 0]["fingerprint"]
    assert rows["actv", 0]["fc1.output", 0]["fingerprint"] != rows["actv", 0]["fc1.output", 1]["fingerprint"]


def test_every_format_and_command_takes_them(trained, output_dir, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = tables(output_dir)
    stored = pq.read_table(output_dir / "parquet").to_pylist()
    texts = {(one["data_type"], one["step"], one["name"], one["micro_step"]): one["fingerprint"] for one in stored}
    for (data_type, step), members in rows.items():
        for (name, micro), cells in members.items():
            assert texts[data_type, step, name, micro] == cells["fingerprint"]
            assert len(cells["fingerprint"]) == 16
    (run_dir,) = output_dir.glob("*-rank0-*")
    events = EventAccumulator(str(run_dir))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert any(tag.endswith("_norm") for tag in tags)
    assert not any("fingerprint" in tag for tag in tags)
    for command in (["show", str(output_dir)], ["diff", str(output_dir), str(output_dir)], ["merge", str(output_dir)]):
        assert main(command) == 0, capsys.readouterr()
    merged = tables(output_dir / "merged")
    assert merged["grad_reduced", 1] == rows["grad_reduced", 1]


def test_calls_and_the_second_form(write_config, tmp_path):
    model, optimizer = build("mlp")
    monitors = {
        "weight_grad": {"enabled": True, "ops": ["fingerprint", "norm"]},
        "param": {"enabled": True, "param_distribution": True, "ops": ["max"]},
    }
    config = write_config(output_dir=str(tmp_path / "second"), monitors=monitors)
    monitor = TrainerMonitorV2(config, fr="pytorch")
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=2)
    seen = []
    train(model, optimizer, 1, lambda: seen.extend((name, one.grad) for name, one in model.named_parameters()))
    monitor.stop()
    (path,) = (tmp_path / "second").rglob("weight_grad_*.csv")
    (table,) = (table for table in msmon_io.read_csv(path) if table.data_type == "grad_reduced")
    assert dict(zip(table.names, table.text["fingerprint"], strict=True)) == {
        name: text_of(gradient)[0] for name, gradient in seen
    }


def test_metrics_of_the_step_in_flight(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(wg_distribution=True, format="api", ops=["shape", "fingerprint", "norm"])
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        model(torch.ones(3, 4)).sum().backward()
        reduced, _ = monitor.generate_wgrad_metrics()
    metrics = reduced["0:fc1.weight/rank0/grad_reduced"]
    assert list(metrics) == ["shape", "fingerprint", "norm"]
    assert metrics["fingerprint"] == text_of(model.fc1.weight.grad)[0]


def test_histograms_ride_in_wider_rows():
    ref = TensorRef("adam_histogram", "w", 0, None, 0, (0,), (2,), "torch.float32")
    found = []
    for fingerprint in (False, True):
        buffer = PartialBuffer(fingerprint=fingerprint)
        buffer.measure([torch.ones(3)], 1e-8)
        handle = buffer.put(torch.arange(140.0))
        buffer.measure([torch.ones(3)], 1e-8)
        made = histograms(0, [ref], np.array([handle]), buffer.transfer().matrix())
        found.append([(table.values.tolist(), counts.tolist()) for table, counts in made])
    assert found[0] == found[1]
    assert found[0][0][1][0][1:4] == [2.0, 3.0, 4.0]
