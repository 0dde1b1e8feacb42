"""Dynamic start and stop: a real training, and a configuration file that is edited while it runs."""

import csv
import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from msmon.pytorch import TrainerMon

from .reference_models import build


class Job:
    """A training that can be run step by step, with its configuration file."""

    def __init__(self, path: Path, model_name: str = "mlp", compile: bool = False) -> None:
        self.path = path
        self.model, self.optimizer = build(model_name)
        self.run_model = torch.compile(self.model, backend="eager") if compile else self.model
        self.losses: list[float] = []
        torch.manual_seed(1)
        if compile:
            self.step()
            self.losses.clear()
        self.monitor = TrainerMon(path, params_have_main_grad=False)
        self.monitor.set_monitor(self.run_model, 1, self.optimizer)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            loss = self.run_model(torch.randn(5, 4)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())

    def hooks(self) -> int:
        """Hooks on modules and parameters, besides those on the optimizer's step."""
        modules = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self.model.modules())
        return modules + sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in self.model.parameters())


@pytest.fixture
def job(tmp_path, output_dir, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    made = []

    def start(text: str | None = None, **options: object) -> Job:
        path = tmp_path / "config.json"
        if text is not None:
            path.write_text(text)
        made.append(Job(path, **options))
        return made[-1]

    yield start
    for one in made:
        one.monitor.close()


def collected(output_dir: Path) -> list[list[int]]:
    """For each run directory, oldest first, the steps of the reduced gradients."""
    directories = sorted(output_dir.glob("*-rank0-*"), key=lambda path: path.stat().st_ctime_ns)
    found = []
    for directory in directories:
        steps: set[int] = set()
        for path in directory.glob("grad_reduced_*.csv"):
            with path.open() as file:
                steps |= {int(row["step"]) for row in csv.DictReader(file)}
        found.append(sorted(steps))
    return sorted(found)


def text(**fields: object) -> str:
    return json.dumps({"wg_distribution": True, "ops": ["norm"], **fields}, indent=3)


def test_off_at_the_start_costs_nothing_and_writes_nothing(job, output_dir):
    running = job(text(dynamic_on=False))
    running.step(3)
    assert running.hooks() == 0
    assert not output_dir.exists()
    missing = job()
    missing.path.unlink()
    missing.step(2)
    assert missing.hooks() == 0


def test_on_at_the_start_begins_with_step_1_and_ignores_start_step(job, output_dir):
    running = job(text(dynamic_on=True, start_step=100, step_interval=2, collect_times=2))
    running.step(6)
    running.monitor.close()
    assert collected(output_dir) == [[1, 3]]
    # The program has set the switch back, and changed nothing else.
    assert running.path.read_text() == text(dynamic_on=False, start_step=100, step_interval=2, collect_times=2)
    assert running.hooks() == 0


def test_start_change_stop_and_start_again(job, output_dir):
    running = job(text(dynamic_on=False))
    running.step(2)  # 0, 1
    running.path.write_text(text(dynamic_on=True))
    running.step(3)  # 2 by the old one, which collects nothing; 3 and 4 are collected
    assert running.hooks() > 0
    temporary = running.path.with_suffix(".tmp")
    temporary.write_text(text(dynamic_on=True, ops=["max"], step_interval=2))
    os.replace(temporary, running.path)
    running.step(4)  # 5 as before, then 6 and 8 by the new one
    running.path.write_text("{ half writ")
    running.step(1)  # 9: broken, goes on; not a multiple of the interval
    running.path.write_text(text(dynamic_on=True, ops=["max"], step_interval=2, collect_times=0))
    running.step(2)  # 10 is still collected, 11 not
    assert running.hooks() == 0
    running.path.write_text(text(dynamic_on=True, collect_times=1))
    running.step(4)  # 12 as before; 13
    running.monitor.close()
    assert collected(output_dir) == [[3, 4, 5], [6, 8, 10], [13]]
    assert json.loads(running.path.read_text())["dynamic_on"] is False
    assert not running.optimizer._optimizer_step_post_hooks


def in_place(path: Path, new: str) -> None:
    with path.open("r+") as file:
        file.write(new)
        file.truncate()


def renamed(path: Path, new: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(new)
    os.replace(temporary, path)


def created_anew(path: Path, new: str) -> None:
    path.unlink()
    path.write_text(new)


def with_the_old_time(path: Path, new: str) -> None:
    before = path.stat()
    path.write_text(new)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_however_the_file_is_saved_a_training_notices(job, output_dir, caplog):
    """On for two steps and off for one, by each way in turn; both contents have the same size."""
    ways = [Path.write_text, in_place, renamed, created_anew, with_the_old_time]
    off, on = text(dynamic_on=False), text(dynamic_on=True).replace('_on": true', '_on": true ')
    assert len(off) == len(on)
    running = job(off)
    for way in ways:
        way(running.path, on)
        running.step(3)  # the first one as before
        assert running.hooks() > 0, way
        way(running.path, off)
        running.step(1)
        assert running.hooks() == 0, way
    running.monitor.close()
    # The step in which the file is written is still collected.
    assert collected(output_dir) == [[n + 1, n + 2, n + 3] for n in range(0, 4 * len(ways), 4)]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_broken_or_missing_file_starts_nothing_and_a_finished_period_starts_again(job, output_dir, caplog):
    running = job("{ half writ")
    running.step(2)  # 0, 1
    assert running.hooks() == 0
    running.path.unlink()
    running.step(1)  # 2
    running.path.write_text(text(dynamic_on=True, collect_times=1))
    running.step(3)  # 3 as before; 4 is collected, and that is all
    assert json.loads(running.path.read_text())["dynamic_on"] is False
    assert running.hooks() == 0
    running.path.write_text(text(dynamic_on=True, collect_times=1))
    running.step(1)  # 6 as before
    running.path.unlink()
    running.step(2)  # 7 is collected; the file is gone, which is said, and the period ends all the same
    assert running.hooks() == 0
    running.monitor.close()
    assert collected(output_dir) == [[4], [7]]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [("half" in e or "line 1" in e, "no such file" in e) for e in errors] == [
        (True, False),
        (False, True),
        (False, True),
        (False, True),
    ]


@pytest.mark.parametrize("variable", [None, "False", "1"])
def test_static_mode_does_not_look_at_the_switch(job, output_dir, monkeypatch, variable):
    monkeypatch.delenv("DYNAMIC_MONITOR")
    if variable is not None:
        monkeypatch.setenv("DYNAMIC_MONITOR", variable)
    running = job(text(dynamic_on=False, start_step=1, collect_times=2))
    running.step(1)
    running.path.write_text(text(dynamic_on=True))
    running.step(4)
    running.monitor.close()
    assert collected(output_dir) == [[1, 2]]
    assert json.loads(running.path.read_text())["dynamic_on"] is True


def test_losses_are_those_of_an_unmonitored_training(job, output_dir, monkeypatch):
    running = job(text(dynamic_on=True, xy_distribution=True, param_distribution=True, mv_distribution=True))
    running.step(3)
    running.path.write_text(text(dynamic_on=False))
    running.step(3)
    model, optimizer = build("mlp")
    torch.manual_seed(1)
    losses = []
    for _ in range(6):
        loss = model(torch.randn(5, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert running.losses == losses


def test_a_compiled_model_shows_its_rows_after_a_dynamic_start(job, output_dir):
    running = job(text(dynamic_on=False), compile=True)
    running.step(2)
    running.path.write_text(text(dynamic_on=True, xy_distribution=True, all_xy=True))
    running.step(3)  # the first one as before
    running.path.write_text(text(dynamic_on=False))
    running.step(1)
    running.monitor.close()
    (directory,) = output_dir.glob("*-rank0-*")
    coverage = json.loads((directory / "coverage.json").read_text())
    assert coverage["seen"]["grad_reduced"] == coverage["expected"]["grad_reduced"] == 4
    # The compiled region as a whole has rows in each step, and modules inside are listed with the reason.
    shown: dict[str, list[tuple[int, str]]] = {"actv": [], "actv_grad": []}
    for data_type, found in shown.items():
        for path in directory.glob(f"{data_type}_[0-9]*.csv"):
            with path.open() as file:
                found += [(int(row["step"]), row["name"]) for row in csv.DictReader(file)]
    steps = (3, 4, 5)
    assert sorted(shown["actv"]) == [(step, f".{side}") for step in steps for side in ("input", "output")]
    assert sorted(shown["actv_grad"]) == [(step, ".output") for step in steps]
    listed = {e["name"]: e["reason"] for e in coverage["missing"] if e["data_type"] == "actv"}
    assert set(listed) == {"fc1", "relu", "fc2"}
    assert set(listed.values()) == {"hook did not fire: inside a region compiled by torch.compile"}

    torch.compiler.reset()
    monitored = running.losses
    alone = job(text(dynamic_on=False), compile=True)
    alone.step(6)
    assert alone.losses == monitored


def test_changing_ops_and_activations_while_training(write_config, output_dir):
    model, optimizer = build("mlp")
    monitor = TrainerMon(write_config(wg_distribution=True, step_count_per_record=10), params_have_main_grad=False)

    def step(change=None) -> None:
        loss = model(torch.ones(2, 4)).sum()
        if change is not None:
            change()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    monitor.set_monitor(model, 1, optimizer)
    step()
    step(lambda: setattr(monitor, "ops", ["max", "min"]))  # in the middle of step 1: from step 2 on
    step()
    with pytest.warns(DeprecationWarning, match="reload_xy is deprecated"):
        monitor.reload_xy(True)
    step()
    assert monitor.generate_xy_metrics()[0]["0:fc1.input:0/rank0/actv"] == {"max": 1.0, "min": 1.0}
    monitor.close()
    assert collected(output_dir) == [[0, 1], [2], [3]]


def test_old_calls_work_and_name_the_new_ones(write_config, output_dir):
    model, optimizer = build("mlp")
    with pytest.warns(DeprecationWarning, match="opt_ty is deprecated"):
        monitor = TrainerMon(write_config(wg_distribution=True), None, False, "unknown")
    with pytest.warns(DeprecationWarning, match="monitor_gnorm_with_ad"), pytest.raises(TypeError, match="set_monitor"):
        monitor.monitor_gnorm_with_ad(model, 1)
    with pytest.warns(DeprecationWarning, match="set_wrapped_optimizer"):
        monitor.set_wrapped_optimizer(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor.monitor_gnorm_with_ad(model, 1, start_iteration=5)
    assert [(warning.category, Path(warning.filename).name) for warning in caught] == [
        (DeprecationWarning, "test_dynamic.py")
    ]
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    monitor.close()
    assert collected(output_dir) == [[5]]
