"""The configuration changes while training, or has nothing to monitor."""

import json
import logging

import pytest
import torch
from torch import nn

from msmon.config import ConfigError
from msmon.pytorch import TrainerMon


def train(monitor, steps, at=None, start_iteration=0):
    """Train; `at[step]()` is called between the steps, before that one."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor.set_monitor(model, 1, optimizer, start_iteration=start_iteration)
    for step in range(start_iteration, start_iteration + steps):
        if at and step in at:
            at[step]()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    return model, optimizer


def recorded(output_dir):
    """Run directory, the oldest first, to its steps."""
    runs = sorted(output_dir.glob("*-rank0-*"), key=lambda path: (path.stat().st_ctime_ns, path.name))
    return [sorted(int(path.stem.rpartition("-")[2]) for path in run.glob("grad_reduced_*.csv")) for run in runs]


@pytest.mark.parametrize(
    ("before", "change", "steps"),
    [
        ({}, {"step_interval": 3}, [0, 1, 2, 3, 6, 9]),
        ({"step_interval": 4}, {"step_interval": 2}, [0, 4, 6, 8, 10]),
        ({}, {"start_step": 8}, [0, 1, 2, 8, 9, 10, 11]),
        ({}, {"collect_times": 5}, [0, 1, 2, 3, 4]),
        ({"step_interval": 2, "collect_times": 3}, {"collect_times": 4, "step_interval": 3}, [0, 2, 3, 6]),
    ],
)
def test_other_steps_are_sampled_from_the_next_one_on(write_config, output_dir, before, change, steps):
    monitor = TrainerMon(write_config(wg_distribution=True, **before), params_have_main_grad=False)
    train(monitor, 12, {3: lambda: monitor.change_config(**change)})
    # In the same run directory: nothing of the rows is different.
    assert recorded(output_dir) == [steps]
    (run,) = output_dir.glob("*-rank0-*")
    config = json.loads((run / "run.json").read_text())["config"]
    assert {key: config[key] for key in change} == change


def test_other_columns_begin_a_run_directory_and_keep_count(write_config, output_dir):
    monitor = TrainerMon(write_config(wg_distribution=True, collect_times=5), params_have_main_grad=False)
    train(monitor, 8, {2: lambda: monitor.change_config(ops=["max"], step_interval=2)})
    assert sorted(recorded(output_dir)) == [[0, 1], [2, 4, 6]]


def test_the_same_values_change_nothing(write_config, output_dir):
    monitor = TrainerMon(write_config(wg_distribution=True), params_have_main_grad=False)
    train(monitor, 4, {2: lambda: monitor.change_config(ops=["norm"], step_interval=1)})
    assert recorded(output_dir) == [[0, 1, 2, 3]]


def test_wrong_values_are_refused_as_in_the_file(write_config, output_dir):
    monitor = TrainerMon(write_config(wg_distribution=True), params_have_main_grad=False)
    with pytest.raises(ConfigError, match="change_config: 2 problems") as caught:
        monitor.change_config(step_interval=0, step_intervall=3)
    assert "step_interval: 0 is refused, expected an integer >= 1" in str(caught.value)
    assert 'step_intervall: unknown key, did you mean "step_interval"?' in str(caught.value)
    train(monitor, 2)
    assert recorded(output_dir) == [[0, 1]]


NOTHING = [
    {},
    {"ops": ["max"]},
    {"xy_distribution": True, "forward_only": True, "backward_only": True},
    {"recording_l2_features": True},
    {"recording_l2_features": True, "l2_targets": {"attention_hook": []}},
    {"ur_distribution": True},
    {"stack_info": True, "format": "tensorboard"},
    {"l2_targets": {"linear_hook": []}},
    {"alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}},
]


@pytest.mark.parametrize("fields", NOTHING, ids=[json.dumps(fields) for fields in NOTHING])
def test_nothing_to_monitor_hooks_nothing_and_writes_nothing(write_config, output_dir, caplog, fields):
    with caplog.at_level(logging.WARNING, "msmon"):
        monitor = TrainerMon(write_config(**fields), params_have_main_grad=False)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hooks = {name: len(getattr(model, name)) for name in vars(model) if name.endswith("_hooks")}
        monitor.set_monitor(model, 1, optimizer)
        assert {name: len(getattr(model, name)) for name in hooks} == hooks
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
        model(torch.ones(2, 3)).sum().backward()
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        optimizer.step()
        assert monitor.generate_wgrad_metrics() == ({}, {})
        monitor.close()
    assert sum("nothing is monitored" in record.getMessage() for record in caplog.records) == 1
    assert not output_dir.exists() or not list(output_dir.iterdir())
