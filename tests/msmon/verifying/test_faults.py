"""Faults of one process are found at their step and tensor."""

from __future__ import annotations

import pytest
import torch

from msmon import verify

from .training import TwoHeads, train

__all__ = ["train"]


def broken(run, invariant):
    """The only violation of a run."""
    report = verify(run)
    assert [one.invariant for one in report.outcomes if one.state == "broken"] == [invariant]
    (one,) = report.outcome(invariant).violations
    return one


def test_one_weight_changed_once(train):
    def flip(model, optimizer, step):
        if step == 7:
            model.first.weight.data.view(-1).view(torch.int32)[3] ^= 1

    one = broken(train(before_step=flip), "untouched")
    assert (one.step, one.data_type, one.tensor) == (7, "param_origin", "first.weight")
    assert "silent data corruption" in one.guess


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
def test_one_moment_changed_once(train, moment):
    def flip(model, optimizer, step):
        if step == 7:
            optimizer.state[model.body.weight][moment].view(-1).view(torch.int32)[3] ^= 1 << 20

    one = broken(train(before_step=flip), "moments")
    assert (one.step, one.data_type, one.tensor, one.minority) == (7, moment, "body.weight", (0,))
    assert "silent data corruption" in one.guess


def test_moved_without_a_gradient(train):
    """The second head has none at even steps."""

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        steps = iter(range(100))

        def move(*unused):
            if next(steps) == 8:
                model.second.weight.data += 0.1

        optimizer.register_step_post_hook(move)
        return optimizer

    one = broken(train(optimizer=make), "untouched")
    assert (one.step, one.data_type, one.tensor) == (8, "param_updated", "second.weight")
    assert one.guess == "moves without a gradient, and did not at other steps"


def test_never_updated(train):
    """Its group has a learning rate of 0, while others learn."""

    def make(model: TwoHeads):
        rest = [one for one in model.parameters() if one is not model.body.weight]
        return torch.optim.AdamW([{"params": rest}, {"params": [model.body.weight], "lr": 0.0}], 1e-2)

    one = broken(train(optimizer=make), "untouched")
    assert (one.step, one.tensor) == (0, "body.weight")
    assert "nobody updates it" in one.guess


def test_gradient_lost_before_the_update(train):
    def lose(model, optimizer, step):
        if step == 6:
            model.body.weight.grad.zero_()

    one = broken(train(before_update=lose), "reductions")
    assert (one.step, one.tensor) == (6, "body.weight")
    assert one.guess == "the gradient is gone after the reduction"


def test_gradients_multiplied(train):
    def multiply(model, optimizer, step):
        if step == 5:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= 4

    one = broken(train(before_update=multiply, grad_acc_steps=4), "reductions")
    assert (one.step, one.tensor) == (5, "")
    assert "looks like a missing division by grad_acc_steps (4)" in one.guess
