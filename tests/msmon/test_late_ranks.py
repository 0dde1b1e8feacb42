"""A monitor that is set before the script has made its processes known to one another, or its model what it trains."""

from __future__ import annotations

import json

import pytest
import torch
from torch import distributed, nn

from msmon.pytorch import TrainerMon


@pytest.fixture
def join(tmp_path):
    def init() -> None:
        store = distributed.FileStore(str(tmp_path / "store"), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    yield init
    if distributed.is_initialized():
        distributed.destroy_process_group()


def train(model, optimizer, steps=2) -> None:
    for _ in range(steps):
        model(torch.ones(2, 3, dtype=next(model.parameters()).dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def made(config, monkeypatch, rank: int):
    """A monitor and its model, where the environment names another rank than the process group will."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "8")
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(config, params_have_main_grad=False)
    monitor.set_monitor(model, 1, optimizer)
    return monitor, model, optimizer


def test_ranks_that_are_known_later(write_config, output_dir, monkeypatch, join):
    monitor, model, optimizer = made(write_config(wg_distribution=True), monkeypatch, rank=3)
    join()
    train(model, optimizer)
    monitor.close()
    (run_dir,) = output_dir.iterdir()
    info = json.loads((run_dir / "run.json").read_text())
    assert (info["rank"], info["world_size"]) == (0, 1)
    assert len((run_dir / "grad_unreduced_0-0.csv").read_text().splitlines()) == 3


def test_a_rank_that_turns_out_to_be_monitored(write_config, output_dir, monkeypatch, join):
    monitor, model, optimizer = made(write_config(wg_distribution=True, module_ranks=[0]), monkeypatch, rank=3)
    assert not model._forward_hooks
    join()
    train(model, optimizer)
    monitor.close()
    (run_dir,) = output_dir.iterdir()
    assert (run_dir / "grad_reduced_1-1.csv").exists()


def test_a_process_group_that_is_made_while_the_training_runs(write_config, output_dir, monkeypatch, join):
    """It belongs to something else: what was begun goes on."""
    monitor, model, optimizer = made(write_config(wg_distribution=True), monkeypatch, rank=3)
    train(model, optimizer, 1)
    join()
    train(model, optimizer, 1)
    monitor.close()
    (run_dir,) = output_dir.iterdir()
    assert json.loads((run_dir / "run.json").read_text())["rank"] == 3
    assert {path.name for path in run_dir.glob("grad_reduced*")} == {"grad_reduced_0-0.csv", "grad_reduced_1-1.csv"}


def test_nothing_is_left_on_the_function(write_config, monkeypatch):
    code = distributed.init_process_group.__code__
    monitor, model, optimizer = made(write_config(wg_distribution=True), monkeypatch, rank=0)
    assert distributed.init_process_group.__code__ is not code
    train(model, optimizer, 1)
    assert distributed.init_process_group.__code__ is code
    monitor.close()


def test_a_model_that_is_converted_later(write_config, output_dir, monkeypatch):
    monitor, model, optimizer = made(write_config(wg_distribution=True), monkeypatch, rank=0)
    model.double()
    train(model, optimizer)
    monitor.close()
    (run_dir,) = output_dir.iterdir()
    info = json.loads((run_dir / "run.json").read_text())
    assert [one["dtype"] for one in info["tensors"] if one["name"] == "weight"] == ["torch.float64"]
    assert len((run_dir / "grad_unreduced_1-1.csv").read_text().splitlines()) == 3
