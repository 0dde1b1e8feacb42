"""Which forwards are micro-steps: of several networks, without a root, in evaluation mode, in other threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from .recorder import Monitored

EVERYTHING = {
    "weight_gradients": True,
    "each_micro_step": True,
    "activations": True,
    "activation_gradients": True,
    "weights": True,
}


def mlp(inputs: int = 4, outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def micro_steps(seen: Monitored, data_type: str, name: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for kind, of, step, micro_step in seen.recorder.rows:
        if (kind, of) == (data_type, name):
            found.setdefault(step, []).append(micro_step)
    return found


def weights(model: nn.Module) -> list[float]:
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def compare(train, **clock) -> Monitored:
    """Train with and without a monitor; the weights are the same."""
    expected, none = train(lambda *_: None)
    made = []

    def watch(model, optimizer):
        made.append(Monitored(model, optimizer, **EVERYTHING))

    found, _ = train(watch)
    assert none is None
    assert found == expected
    made[0].close()
    return made[0]


def gan(order: str, *, set_to_none: bool = True):
    """A training of both networks; the discriminator's order of calls differs."""

    def train(watch):
        torch.manual_seed(0)
        generator, discriminator = mlp(2, 4), mlp(4, 1)
        g, d = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (generator, discriminator))
        watch(discriminator, d)

        def train_generator():
            if order == "frozen":
                discriminator.requires_grad_(False)
            g.zero_grad()
            (-discriminator(generator(torch.randn(3, 2)))).mean().backward()
            g.step()
            discriminator.requires_grad_(True)

        for _ in range(3):
            if order == "generator first":
                train_generator()
            fake = generator(torch.randn(3, 2)).detach()
            if order == "cleared late":
                loss = discriminator(fake).mean()
                d.zero_grad(set_to_none)
                loss.backward()
            elif order == "one backward":
                loss = discriminator(fake).mean() - discriminator(torch.randn(3, 4)).mean()
                d.zero_grad(set_to_none)
                loss.backward()
            else:
                d.zero_grad(set_to_none)
                discriminator(fake).mean().backward()
            if order == "penalty":
                batch = torch.randn(3, 4, requires_grad=True)
                (gradient,) = torch.autograd.grad(discriminator(batch).sum(), batch, create_graph=True)
                (gradient.square().mean() - discriminator(torch.randn(3, 4)).mean()).backward()
            d.step()
            if order != "generator first":
                train_generator()
        return weights(discriminator) + weights(generator), None

    return train


ORDERS = ["usual", "generator first", "frozen", "cleared late", "one backward", "penalty"]


@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_before_the_reduction_is_none_of_the_generators(order):
    """One row a step: that of the discriminator's own backward."""
    expected, _ = gan(order)(lambda *_: None)
    made = []
    found, _ = gan(order)(lambda *given: made.append(Monitored(*given, weight_gradients=True, activations=True)))
    assert found == expected
    made[0].close()
    rows = made[0].recorder.rows
    for step in range(3):
        assert rows["grad_unreduced", "0.weight", step, None] == rows["grad_reduced", "0.weight", step, None]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_the_discriminator_in_the_step_of_the_generator(order, set_to_none):
    seen = compare(gan(order, set_to_none=set_to_none))
    expected = {"one backward": [0, 1], "penalty": [0, 1, 2]}.get(order, [0])
    steps = dict.fromkeys(range(3), expected)
    assert {step: found for step, found in micro_steps(seen, "actv", "0.output").items() if step < 3} == steps
    assert [event.last_micro_step for event in seen.recorder.events] == [len(expected) - 1] * 3
    gradients = {step: found[-1] for step, found in micro_steps(seen, "grad_unreduced", "0.weight").items() if step < 3}
    # Of two forwards before one backward, that of the first is reached last.
    last = 0 if order == "one backward" else expected[-1]
    assert gradients == dict.fromkeys(range(3), last)
    norms = [
        seen.recorder.rows["grad_unreduced", "0.weight", step, last]
        == seen.recorder.rows["grad_reduced", "0.weight", step, None]
        for step in range(3)
    ]
    assert all(norms)


def test_two_networks_in_one_module_whose_first_optimizer_is_followed():
    """As in Lightning's manual optimization: a batch is said to be a micro-step, and its forward ends at the first
    backward. What the discriminator runs in a batch is none of the generator's next step."""

    def train(watch):
        torch.manual_seed(0)
        both = nn.ModuleDict({"g": mlp(2, 4), "d": mlp(4, 1)})
        g, d = (torch.optim.Adam(both[name].parameters(), lr=0.01) for name in ("g", "d"))
        watch(both, g)
        for _ in range(3):
            if attachment:
                attachment[0].begin_micro_step()
            loss = -both["d"](both["g"](torch.randn(3, 2))).mean()
            if attachment:
                attachment[0].end_micro_step(loss)
            loss.backward()
            g.step()
            both.zero_grad()
            both["d"](both["g"](torch.randn(3, 2)).detach()).mean().backward()
            d.step()
            both.zero_grad()
        return weights(both), None

    attachment = []
    expected, _ = train(lambda *_: None)
    made = []

    def watch(model, optimizer):
        made.append(Monitored(model, optimizer, **EVERYTHING))
        attachment.append(made[0].attachment)

    found, _ = train(watch)
    made[0].close()
    assert found == expected
    seen = made[0]
    assert [event.last_micro_step for event in seen.recorder.events] == [0, 0, 0]
    for name in ("g.0.output", "d.0.output"):
        steps = micro_steps(seen, "actv", name)
        assert {step: steps[step] for step in range(3)} == {0: [0], 1: [0], 2: [0]}
    assert not [name for _, name, step, _ in seen.recorder.rows if "@" in name and step < 3]


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_root_that_is_never_called(accumulated):
    def train(watch):
        torch.manual_seed(0)
        model = Autoencoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model, optimizer)
        for _ in range(2):
            for _ in range(accumulated):
                model.decoder(model.encoder(torch.randn(5, 4))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), None

    seen = compare(train)
    steps = {step: list(range(accumulated)) for step in range(2)}
    for data_type in ("actv", "actv_grad"):
        assert micro_steps(seen, data_type, "encoder.output") == steps
    assert not [name for _, name, _, _ in seen.recorder.rows if "@" in name]
    assert micro_steps(seen, "grad_unreduced", "encoder.weight") == steps


def test_a_module_is_called_before_its_root_is():
    """It belongs to the micro-step of the root."""

    def train(watch):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model, optimizer)
        for _ in range(2):
            (model[0](torch.randn(5, 4)).square().mean() + model(torch.randn(5, 4)).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), None

    seen = compare(train)
    assert micro_steps(seen, "actv", "2.output") == {0: [0], 1: [0]}
    assert [event.last_micro_step for event in seen.recorder.events] == [0, 0]


def test_training_in_evaluation_mode():
    """Fine-tuning with frozen statistics, with evaluations between."""

    def train(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model, optimizer)
        for _ in range(3):
            with torch.no_grad():
                model(torch.randn(5, 4))
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), None

    seen = compare(train)
    for data_type in ("actv", "actv_grad"):
        assert micro_steps(seen, data_type, "0.output") == {0: [0], 1: [0], 2: [0]}
    assert not seen.missing().keys() & {("actv", name) for name in ("0", "1", "3")}


def test_evaluations_with_gradients_before_the_training():
    def train(watch):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model, optimizer)
        for _ in range(2):
            model.eval()
            for _ in range(100):
                model(torch.randn(5, 4))
            model.train()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), None

    seen = compare(train)
    assert micro_steps(seen, "actv", "0.output") == {0: [0], 1: [0]}
    assert not seen.notes


def test_a_training_that_goes_on_in_evaluation_mode():
    """The first step in it cannot be known to be one before its backward."""

    def train(watch):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model, optimizer)
        for step in range(5):
            model.train(step < 2)
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), None

    seen = compare(train)
    assert micro_steps(seen, "actv", "0.output").keys() == {0, 1, 3, 4}
    assert micro_steps(seen, "grad_reduced", "0.weight").keys() == set(range(5))


def test_an_actor_runs_while_the_learner_trains():
    """In a thread of its own, in the middle of the learner's forward."""

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
            self.between = None

        def forward(self, x):
            x = self.first(x)
            if self.between is not None:
                between, self.between = self.between, None
                between()
            return self.last(x)

    def train(watch):
        torch.manual_seed(0)
        model = Learner()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model, optimizer)
        batch = torch.randn(5, 4)

        def act():
            with torch.no_grad():
                model(batch)

        def in_a_thread():
            actor = threading.Thread(target=act)
            actor.start()
            actor.join()

        for _ in range(3):
            model.between = in_a_thread
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model), None

    seen = compare(train)
    for name in ("first.output", "last.output", ".output"):
        assert micro_steps(seen, "actv", name) == {0: [0], 1: [0], 2: [0]}
    assert not [name for _, name, _, _ in seen.recorder.rows if "@" in name]
