"""What programs do on purpose breaks nothing: the floor of false alarms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msmon import verify

from .training import TwoHeads, train

__all__ = ["train"]


def holds(run):
    """The report, of which nothing is broken."""
    report = verify(run)
    assert report.holds, report.first
    return {one.invariant: one for one in report.outcomes}


def test_plain(train):
    found = holds(train())
    assert {name: one.state for name, one in found.items() if one.state != "not checked"}.keys() >= {
        "reductions",
        "untouched",
        "clipping",
    }
    assert found["replicas"].reason == "the run has one rank"
    # A head without a gradient at every second step stays.
    assert found["untouched"].comparisons > 100


def test_moments(train):
    """They follow, unless the program begins them anew, or the optimizer adds to the gradient."""
    found = holds(train())["moments"]
    assert found.state == "holds"
    assert found.comparisons > 60

    def begin_anew(model, optimizer, step):
        if step == 5:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()

    assert holds(train(before_step=begin_anew))["moments"].state == "holds"
    decaying = lambda model: torch.optim.Adam(model.parameters(), 1e-2, weight_decay=0.1)  # noqa: E731
    found = holds(train(optimizer=decaying))["moments"]
    assert (found.state, "not the gradient alone" in found.reason) == ("not checked", True)


def test_clipping_by_the_norm(train):
    found = holds(train(before_update=lambda model, *_: nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
    assert found["clipping"].state == "holds"
    assert found["clipping"].comparisons > 50


def test_clipping_by_value_is_no_factor(train):
    found = holds(train(before_update=lambda model, *_: nn.utils.clip_grad_value_(model.parameters(), 0.01)))
    assert found["reductions"].state == "not checked"
    assert "no common factor" in found["reductions"].reason


def test_clipping_of_groups(train):
    def clip(model, optimizer, step):
        for head in (model.body, model.first, model.second):
            nn.utils.clip_grad_norm_(head.parameters(), 0.02)

    found = holds(train(before_update=clip))
    assert found["reductions"].state == "not checked"


def test_noise_on_gradients(train):
    def noise(model, optimizer, step):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.01 * torch.randn_like(parameter.grad)

    assert holds(train(before_update=noise))["reductions"].state == "not checked"


def test_division_after_accumulation(train):
    def divide(model, optimizer, step):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 3

    found = holds(train(before_update=divide, grad_acc_steps=3))
    assert found["reductions"].notes == ["the program divides gradients by grad_acc_steps (3) after the reduction"]


def test_micro_batches(train):
    assert holds(train(grad_acc_steps=3))["micro-batches"].state == "holds"


def test_weights_that_the_program_changes(train):
    """Clamping at every step, a checkpoint loaded once, an average put in their place for a while."""

    def clamp(model, optimizer, step):
        model.first.weight.data.clamp_(-0.2, 0.2)

    assert "on purpose" not in str(holds(train(before_step=clamp))["untouched"].violations)


def test_a_checkpoint_loaded_in_between(train):
    def load(model, optimizer, step):
        if step == 5:
            for parameter in model.parameters():
                parameter.data.mul_(0.5)

    (note,) = holds(train(before_step=load))["untouched"].notes
    assert "the program itself changes 6 weights between steps, first before step 5" in note


def test_learning_rate_of_zero(train):
    """Warming up, at the end, and of one group for a while."""

    def rate(model, optimizer, step):
        optimizer.param_groups[0]["lr"] = 0.0 if step < 4 or step > 8 else 1e-2

    holds(train(before_step=rate))


def test_small_steps(train):
    """Updates that single precision cannot hold everywhere."""
    holds(train(optimizer=lambda model: torch.optim.SGD(model.parameters(), 1e-7)))


def test_half_precision(train):
    def data(step):
        return torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).bfloat16()

    found = holds(train(model=lambda: TwoHeads().bfloat16(), data=data, grad_acc_steps=2))
    assert found["untouched"].state == "holds"


def test_frozen_and_unfrozen(train):
    def freeze(model, optimizer, step):
        model.body.weight.requires_grad_(step >= 6)

    holds(train(before_step=freeze))


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "NAdam", "Adafactor"])
def test_optimizers(train, name):
    holds(train(optimizer=lambda model: getattr(torch.optim, name)(model.parameters(), 1e-2)))


def test_momentum_and_decay(train):
    holds(train(optimizer=lambda m: torch.optim.SGD(m.parameters(), 1e-2, momentum=0.9, weight_decay=0.1)))


def test_an_optimizer_that_decays_without_a_gradient(train):
    def decay(model, optimizer, step):
        if step % 2 == 0:
            model.second.weight.grad = torch.zeros_like(model.second.weight)

    holds(train(before_update=decay))


def test_one_batch_over_and_over(train):
    holds(train(data=lambda step: torch.ones(4, 8)))


def test_every_third_step(train):
    found = holds(train(step_interval=3, steps=20))
    assert found["untouched"].state == "holds"


def test_rounded_to_few_digits(train):
    holds(train(format=["csv"], ndigits=3, ops=["norm", "min", "max", "mean"]))


def test_norms_only(train):
    found = holds(train(ops=["norm"]))
    assert "mean" in found["reductions"].reason
