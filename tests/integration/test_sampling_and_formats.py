"""Which steps are recorded, where the results go, and what is left behind."""

import gc
import json
import weakref

import pytest
import torch
from torch import nn

from msmon.pytorch import TrainerMon

from .reference_models import build, train


def steps_on_disk(output_dir):
    return sorted(int(path.stem.rpartition("-")[2]) for path in output_dir.glob("*-rank0-*/grad_reduced_*.csv"))


def test_interval_start_and_times(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(wg_distribution=True, start_step=11, step_interval=2, collect_times=2)
    monitor = TrainerMon(config, params_have_main_grad=False)
    monitor.set_monitor(model, 1, optimizer, start_iteration=10)
    hooks = len(optimizer._optimizer_step_post_hooks)
    train("mlp", model, optimizer, 1)  # steps 10 to 13: 11 and 13 are sampled
    assert hooks == 1
    train("mlp", model, optimizer, 1)
    # The two samples were taken: every hook came off by itself.
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    monitor.close()
    assert steps_on_disk(output_dir) == [11, 13]


def test_current_gradients_are_unscaled(write_config, output_dir):
    model, optimizer = build("mlp")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    config = write_config(wg_distribution=True, format="api", ops=["norm", "max", "zeros"], eps=1e-3)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        gradient = model.fc1.weight.grad.div(1024)
        before, unreduced = monitor.generate_wgrad_metrics()
        scaler.unscale_(optimizer)
        after, _ = monitor.generate_wgrad_metrics()
        scaler.step(optimizer)
    expected = [gradient.norm().item(), gradient.max().item(), (gradient.abs() < 1e-3).double().mean().item()]
    for metrics, data_type in ((before, "grad_reduced"), (unreduced, "grad_unreduced"), (after, "grad_reduced")):
        found = metrics[f"0:fc1.weight/rank0/{data_type}"]
        assert [found[op] for op in ("norm", "max", "zeros")] == pytest.approx(expected, rel=1e-6)


def test_api_format_writes_nothing_and_answers(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(wg_distribution=True, xy_distribution=True, format="api", ops=["norm", "shape"])
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        assert monitor.generate_wgrad_metrics() == ({}, {})
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            norm = model.fc1.weight.grad.norm().item()
            during, _ = monitor.generate_wgrad_metrics()
            optimizer.step()
            optimizer.zero_grad()
            reduced, unreduced = monitor.generate_wgrad_metrics()
            for metrics, data_type in (
                (during, "grad_reduced"),
                (reduced, "grad_reduced"),
                (unreduced, "grad_unreduced"),
            ):
                entry = metrics[f"0:fc1.weight/rank0/{data_type}"]
                assert entry["norm"] == pytest.approx(norm, rel=1e-6)
                assert entry["shape"] == "[8, 4]"
        actv, actv_grad = monitor.generate_xy_metrics()
        assert "0:fc1.input:0/rank0/actv" in actv
        assert "0:fc1.output:0/rank0/actv_grad" in actv_grad
        monitor.ops = ["max"]
        train("mlp", model, optimizer, 1)
        assert list(monitor.generate_wgrad_metrics()[0]["0:fc1.weight/rank0/grad_reduced"]) == ["max"]
    assert not output_dir.exists()


def test_records_of_several_steps_and_json_files(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(
        wg_distribution=True, step_count_per_record=3, targets={"fc2": {}, "1:nothing": {}, "fc3": {}}
    )
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train("mlp", model, optimizer, 1)
    run_dir = next(output_dir.glob("*-rank0-*"))
    assert sorted(path.name for path in run_dir.glob("grad_reduced*")) == [
        "grad_reduced_0-2.csv",
        "grad_reduced_3-5.csv",
    ]
    coverage = json.loads((run_dir / "coverage.json").read_text())
    assert coverage["seen"] == {"grad_reduced": 2, "grad_unreduced": 2}
    assert any("fc3" in note and "fc2" in note for note in coverage["notes"])
    run = json.loads((run_dir / "run.json").read_text())
    assert run["engine"] == "plain"
    assert (
        run["tensors"][0].items()
        >= {
            "name": "fc1.weight",
            "vpp_stage": 0,
            "shape": [8, 4],
            "dtype": "torch.float32",
            "numel": 32,
            "aliases": [],
        }.items()
    )
    assert (run_dir / "grad_reduced_0-2.csv").stat().st_mode & 0o777 == 0o640
    assert run_dir.stat().st_mode & 0o777 == 0o750


def test_wrong_arguments_and_directories(write_config, output_dir, tmp_path, monkeypatch):
    model, optimizer = build("mlp")
    monitor = TrainerMon(write_config(wg_distribution=True))
    for arguments, name in (
        ((optimizer, 1, model), "model"),
        ((model, optimizer, 1), "grad_acc_steps"),
        ((model, True, optimizer), "grad_acc_steps"),
        ((model, 1, model), "optimizer"),
        ((model, 1, optimizer, None, None, "0"), "start_iteration"),
        (([], 1, optimizer), "model"),
    ):
        with pytest.raises(TypeError, match=f"set_monitor: {name} "):
            monitor.set_monitor(*arguments)
    assert not optimizer._optimizer_step_pre_hooks
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "file" / "out"))
    with pytest.raises(OSError, match="MONITOR_OUTPUT_DIR"):
        TrainerMon(write_config(wg_distribution=True))


def test_attaching_twice_and_two_monitors(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(wg_distribution=True, xy_distribution=True)
    first, second = (TrainerMon(config, params_have_main_grad=False) for _ in range(2))
    first.set_monitor(model, 1, optimizer)
    once = [len(module._forward_hooks) for module in model.modules()]
    first.set_monitor(model, 1, optimizer)
    assert [len(module._forward_hooks) for module in model.modules()] == once
    second.set_monitor(model, 1, optimizer)
    train("mlp", model, optimizer, 1)
    first.close()
    assert [len(module._forward_hooks) for module in model.modules()] == once
    train("mlp", model, optimizer, 1)
    second.close()
    assert not any(module._forward_hooks for module in model.modules())


def test_nothing_is_kept_alive_and_a_dropped_monitor_goes_on(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(wg_distribution=True, xy_distribution=True)
    TrainerMon(config, params_have_main_grad=False).set_monitor(model, 1, optimizer)
    gc.collect()
    train("mlp", model, optimizer, 1)
    reference = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert reference() is None
    # What was pending was written when the monitor went away with the model.
    assert steps_on_disk(output_dir) == [0, 1, 2, 3]
    assert list(output_dir.glob("*-rank0-*/coverage.json"))

    model, optimizer = build("mlp")
    monitor = TrainerMon(config, params_have_main_grad=False)
    monitor.set_monitor(model, 1, optimizer)
    train("mlp", model, optimizer, 1)
    monitor.close()
    references = weakref.ref(model), weakref.ref(monitor), weakref.ref(optimizer)
    del model, monitor, optimizer
    # torch leaves cycles of its own behind the first step of an optimizer.
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_a_nan_in_the_batch_is_the_first_anomaly(write_config, output_dir):
    model, optimizer = build("mlp")
    config = write_config(
        wg_distribution=True, xy_distribution=True, alert={"rules": [{"rule_name": "AnomalyNan"}], "dump": True}
    )
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(4):
            batch = torch.ones(3, 4)
            if step == 2:
                batch[1, 2] = float("nan")
            model(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    records = json.loads((output_dir / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    first = next(iter(records.values()))
    assert (first["step"], first["tag_name"], first["rule"]) == (2, "0:fc1.input:0/rank0/actv", "AnomalyNan")
    assert {
        "rank",
        "step",
        "micro_step",
        "pp_stage",
        "vpp_stage",
        "call_id",
        "tag_name",
        "message",
        "group_mates",
    } <= set(first)


def test_the_same_name_in_two_virtual_stages_counts_twice(write_config, output_dir):
    chunks = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]
    optimizer = torch.optim.SGD([parameter for chunk in chunks for parameter in chunk.parameters()], lr=0.1)
    config = write_config(wg_distribution=True, xy_distribution=True, all_xy=True)
    with TrainerMon(config, params_have_main_grad=False) as monitor:
        monitor.set_monitor(chunks, 1, optimizer)
        # The last layer of the second stage is never called.
        chunks[1][0](chunks[0](torch.ones(3, 4))).sum().backward()
        optimizer.step()
    (path,) = output_dir.glob("*-rank0-*/coverage.json")
    found = json.loads(path.read_text())
    assert (found["expected"]["grad_reduced"], found["seen"]["grad_reduced"]) == (8, 6)
    missing = {(entry["data_type"], entry["name"]) for entry in found["missing"]}
    assert {("grad_reduced", "1:1.weight"), ("grad_reduced", "1:1.bias")} <= missing
    assert not {name for _, name in missing if name.startswith("0:")}
