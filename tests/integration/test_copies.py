"""Copies of what is monitored record nothing, and hold nothing of the monitor."""

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch

from msmon.pytorch import TrainerMon

from .reference_models import build

EVERYTHING = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "xy_distribution": True,
    "all_xy": True,
    "stack_info": True,
    "ops": ["norm"],
    "dynamic_on": True,
}


class Wrapper:
    """An optimizer that runs no hooks of torch, as some engines have."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


def saved(folder, thing):
    torch.save(thing, folder / "saved.pt")
    assert b"msmon" not in (folder / "saved.pt").read_bytes()
    return torch.load(folder / "saved.pt", weights_only=False)


def pickled(folder, thing):
    data = pickle.dumps(thing)
    assert b"msmon" not in data
    return pickle.loads(data)


WAYS: dict[str, Callable] = {
    "deepcopy": lambda folder, thing: copy.deepcopy(thing),
    "pickle": pickled,
    "torch.save": saved,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_copies(dynamic, wrapped, write_config, output_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", str(dynamic))
    model, optimizer = build("mlp")
    optimizer = Wrapper(optimizer) if wrapped else optimizer

    def step(model, optimizer):
        loss = model(torch.ones(3, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with TrainerMon(write_config(**EVERYTHING), params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        step(model, optimizer)
        step(model, optimizer)
        clock = monitor._clock
        for name, way in WAYS.items():
            before = (clock.step, clock.micro_step, clock.in_step)
            weights = [parameter.clone() for parameter in model.parameters()]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Together, so that the copy of the optimizer has the copy's parameters.
                other_model, other_optimizer = way(tmp_path, (model, optimizer))
            other_weights = [parameter.clone() for parameter in other_model.parameters()]
            step(other_model, other_optimizer)
            assert (clock.step, clock.micro_step, clock.in_step) == before, name
            assert all(map(torch.equal, weights, model.parameters())), f"{name}: its step updated the original"
            assert not any(map(torch.equal, other_weights, other_model.parameters())), f"{name}: its step did nothing"
        step(model, optimizer)
        assert clock.step == before[0] + 1
    assert (tmp_path / "out").exists()
