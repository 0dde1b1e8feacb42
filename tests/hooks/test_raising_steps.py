"""Optimizers whose step raises, and such as call the step of their base class."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from .recorder import Monitored

EVERYTHING = {
    "weight_gradients": True,
    "moments": True,
    "weights": True,
    "activations": True,
    "activation_gradients": True,
}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Raises(torch.optim.SGD):
    """Raises in its second step, and has its base class step else, which torch makes run the hooks again."""

    def __init__(self, parameters):
        torch.optim.SGD([nn.Parameter(torch.ones(1))])
        super().__init__(parameters, lr=0.1)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("the program's own")
        return super().step(closure)


class Bare:
    """Without hooks of its own, as optimizers of engines."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.zero_grad = optimizer.zero_grad

    def step(self, closure=None):
        return self.optimizer.step(closure)


def train(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("closure", [False, True])
def test_training_goes_on_after_a_step_that_raised(bare, closure):
    """It is a step without an update, and what comes next is not taken for a part of it."""
    model = mlp()
    optimizer = Raises(model.parameters())
    optimizer = Bare(optimizer) if bare else optimizer
    consumed = []
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        for number in range(4):
            evaluate = partial(train, model, optimizer, torch.full((5, 4), number + 1.0))
            if not closure:
                evaluate()
            try:
                optimizer.step(*((evaluate,) if closure else ()))
            except RuntimeError:
                assert number == 1
            consumed.append({name: parameter.grad.norm().item() for name, parameter in model.named_parameters()})
    assert [event.step for event in monitored.recorder.events] == [0, 1, 2, 3]
    assert [event.skipped for event in monitored.recorder.events] == [False, True, False, False]
    assert [event.last_micro_step for event in monitored.recorder.events] == [0, 0, 0, 0]
    assert "step 1: the optimizer raised; recorded as a step without an update" in monitored.notes
    rows = monitored.recorder.rows
    assert ("param_updated", "0.weight", 1, None) not in rows
    for step in (0, 2, 3):
        assert len([1 for kind, _, at, _ in rows if (kind, at) == ("actv", step)]) == 8
        for name, norm in consumed[step].items():
            assert rows["grad_reduced", name, step, None] == pytest.approx(norm)
            assert rows["grad_unreduced", name, step, None] == pytest.approx(norm)
            assert ("param_updated", name, step, None) in rows
    assert rows["param_origin", "0.weight", 2, None] == rows["param_updated", "0.weight", 0, None]
    assert rows["param_origin", "0.weight", 3, None] == rows["param_updated", "0.weight", 2, None]


def test_a_step_that_raised_while_nothing_is_read():
    """Steps are counted on, so that a request that comes later finds them in step with the program."""
    model = mlp()
    optimizer = Raises(model.parameters())
    with Monitored(model, optimizer) as monitored:
        for _ in range(3):
            model(torch.ones(5, 4)).sum().backward()
            try:
                optimizer.step()
            except RuntimeError:
                optimizer.zero_grad()
    assert monitored.clock.step == 3
