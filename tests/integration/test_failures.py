"""Whatever fails inside the monitor: the training is bit for bit the same, each part says it once, the others go on."""

import csv
import json
import logging
import os
import re

import pytest
import torch

from msmon.pytorch import TrainerMon

from .faults import DYNAMIC_POINTS, POINTS, Faults, at_call, at_random, from_call
from .residual_model import train

STEPS = 3
SEEDS = int(os.environ.get("MSMON_FAULT_SEEDS", "3"))
CONFIG = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "xy_distribution": True,
    "all_xy": True,
    "ur_distribution": True,
    "stack_info": True,
    "format": ["csv", "tensorboard"],
    "step_count_per_record": 100,
    "ops": ["norm", "max"],
    "alert": {
        "rules": [
            {"rule_name": "AnomalyTurbulence", "args": {"threshold": 1e9}},
            {"rule_name": "AnomalyNan", "args": {"threshold": 1e-30}},
        ],
        "dump": True,
    },
}
CALLED_ONCE = {
    "weights.attach",
    "engine.weights",
    "engine.attach",
    "engine.attach_update",
    "csv.close",
    "tensorboard.close",
    "rule.state",
    "stacks",
    "session",
}
WEIGHTS = {"grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated"}
EVERYTHING = {*WEIGHTS, "other", "actv", "actv_grad"}
LOST = {
    "activations": {"actv", "actv_grad"},
    "activation gradients": {"actv_grad"},
    "L2 features": set(),
    "micro-steps": {"actv", "actv_grad"},
    "weight gradients": {"grad_unreduced", "grad_reduced"},
    "gradients at the update": {"grad_reduced", "other"},
    "optimizer moments": {"exp_avg", "exp_avg_sq"},
    "weights": {"param_origin", "param_updated"},
    "agreement of gradient and momentum": {"other"},
    "histograms of Adam's update": set(),
    "parameters": {*WEIGHTS, "other"},
    "output by CsvWriter": EVERYTHING,
    "output by csv": EVERYTHING,
    "results of steps": EVERYTHING,
    "the model": EVERYTHING,
}
"""Part of the monitor to the data types whose rows in the CSV files may be missing when it is off."""


@pytest.fixture(scope="module")
def unmonitored():
    return train(steps=STEPS, depth=1)


def attached(path):
    def attach(model, optimizer):
        monitor = TrainerMon(path, params_have_main_grad=False)
        monitor.set_monitor(model, 2, optimizer)
        return monitor

    return attach


def trained(path):
    return train(steps=STEPS, depth=1, attach=attached(path))


def errors(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith("msmon")]


def steps_of(output_dir):
    """Data type to the steps that the CSV files of the run have rows of."""
    found: dict[str, set[int]] = {}
    for path in output_dir.glob("*-rank0-*/*_*-*.csv"):
        with path.open() as file:
            found[path.name.rpartition("_")[0]] = {int(row["step"]) for row in csv.DictReader(file)}
    return found


def check(caplog, output_dir, faults):
    """One error line per part; data types that the lines do not explain are complete."""
    lines = errors(caplog)
    assert len(lines) == len(set(lines)), lines
    parts = [match[1] for line in lines if (match := re.match(r"monitoring of (.*) is switched off", line))]
    assert len(parts) == len(set(parts)), lines
    assert bool(lines) == bool(faults.raised), (lines, faults.raised)
    for line in lines:
        assert "injected into" in line or "it needs micro-steps" in line or "could not be written" in line, line
    excused = set().union(*(LOST.get(part, set()) for part in parts))
    background = any(line.startswith("background output failed") for line in lines)
    found = steps_of(output_dir)
    for data_type in EVERYTHING - excused:
        # No moments before the first update. A step whose work failed beside the training is lost as a whole.
        expected = set(range(1 if data_type in ("exp_avg", "exp_avg_sq", "other") else 0, STEPS))
        missing = expected - found.get(data_type, set())
        assert len(missing) <= background, (data_type, missing, lines)
    return lines


@pytest.mark.parametrize("point", POINTS)
def test_one_call_fails(point, unmonitored, write_config, output_dir, caplog, monkeypatch):
    """The first call at every other point, else the second: so both beginnings and parts that worked before fail."""
    number = list(POINTS).index(point) % 2 if point not in CALLED_ONCE else 0
    faults = Faults({point: POINTS[point]}, at_call(number), monkeypatch)
    assert trained(write_config(**CONFIG)) == unmonitored
    assert faults.raised == [point], "the monitor does not call it"
    lines = check(caplog, output_dir, faults)
    own = [line for line in lines if "could not be written" not in line]
    # Without micro-steps the activations cannot be named.
    assert len(own) == (3 if point.startswith("root.") else 1), lines
    if point not in ("json", "session", "engine.weights"):
        assert {"run.json", "coverage.json"} <= {path.name for path in output_dir.glob("*-rank0-*/*")}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_calls_fail(seed, unmonitored, write_config, output_dir, caplog, monkeypatch):
    faults = Faults(POINTS, at_random(seed, 0.003 * 10 ** (seed % 3)), monkeypatch)
    assert trained(write_config(**CONFIG)) == unmonitored
    lines = errors(caplog)
    assert len(lines) == len(set(lines)), lines
    assert bool(lines) == bool(faults.raised)


@pytest.mark.parametrize("point", DYNAMIC_POINTS)
def test_dynamic_mode_fails(point, unmonitored, write_config, output_dir, caplog, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    for decide in (at_call(0), from_call(1)):
        caplog.clear()
        path = write_config(**CONFIG, dynamic_on=True, collect_times=1)
        with monkeypatch.context() as patch:
            faults = Faults({point: DYNAMIC_POINTS[point]}, decide, patch)
            assert trained(path) == unmonitored
        lines = errors(caplog)
        # Where hooks cannot be set at all, taking them off again fails too, and is another part.
        assert len(lines) == (2 if faults.raised == ["reattach", "reattach"] else bool(faults.raised)), lines
        assert faults.calls[point]


def test_the_failure_is_in_the_coverage(write_config, output_dir, monkeypatch):
    Faults({"module.leave": POINTS["module.leave"]}, from_call(0), monkeypatch)
    trained(write_config(**CONFIG))
    (path,) = output_dir.glob("*-rank0-*/coverage.json")
    coverage = json.loads(path.read_text())
    assert coverage["notes"][0].startswith("activations: switched off after InjectedError: injected into module.leave")
    assert coverage["seen"]["grad_reduced"] == coverage["expected"]["grad_reduced"] == 9


def test_taking_the_hooks_off_fails_too(unmonitored, write_config, output_dir, caplog, monkeypatch):
    """What could not be handed over ends the collection in the middle of a step; that may fail as well."""
    places = {point: POINTS[point] for point in ("transfer", "module.step_ends")}
    places["module.close"] = "msmon_hooks.modules:ModuleHooks.close"
    Faults(places, from_call(0), monkeypatch)
    assert trained(write_config(**CONFIG)) == unmonitored
    assert {re.match(r"monitoring of (.*) is", line)[1] for line in errors(caplog)} == {
        "activations",
        "hooks",
        "results of steps",
    }


ASKED = {"activations": "msmon.collector:Collector.so_far", "gradients": "msmon.collector:Collector.measure_apart"}


@pytest.mark.parametrize("what", ASKED)
def test_asking_in_the_middle_of_a_step_fails(what, write_config, output_dir, caplog, monkeypatch):
    faults = Faults({"asking": ASKED[what]}, from_call(0), monkeypatch)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = write_config(wg_distribution=True, xy_distribution=True, all_xy=True, format="api")
    with attached(config)(model, optimizer) as monitor:
        for step in range(3):
            model(torch.ones(3, 4)).sum().backward()
            wgrad, xy = monitor.generate_wgrad_metrics(), monitor.generate_xy_metrics()
            optimizer.step()
            # What was recorded of the last step is still there, and the other call answers.
            failed, other = (xy, wgrad) if what == "activations" else (wgrad, xy)
            assert all(other)
            assert all(failed) is (step > 0)
    assert faults.raised == ["asking"]
    (line,) = errors(caplog)
    assert line.startswith(f"monitoring of current {what} is switched off, training goes on: ")


def test_what_could_not_be_handed_over_does_not_pile_up(write_config, output_dir, monkeypatch):
    Faults({"transfer": POINTS["transfer"]}, from_call(0), monkeypatch)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attached(write_config(wg_distribution=True, xy_distribution=True, all_xy=True))(model, optimizer)
    for _ in range(3):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert not model._forward_hooks
    assert not model.weight._post_accumulate_grad_hooks
    monitor.close()
