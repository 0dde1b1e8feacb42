"""Which call of which optimizer is a step of the training: containers, wrappers, several, replaced, in a backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from .oracle import norm
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


def backward(model: nn.Module, factor: float = 1.0) -> float:
    loss = factor * model(torch.randn(5, 4)).square().mean()
    loss.backward()
    return loss.item()


def weights(model: nn.Module) -> list[float]:
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


Loop = Iterator[None]
Make = Callable[[nn.Module], tuple[object, Loop]]
"""From a model what `set_monitor` is given, and a loop that yields after each step."""


def run(make: Make, *, watch: bool, steps: int | None = None, **clock) -> tuple[list[float], Monitored | None]:
    model = mlp()
    optimizer, loop = make(model)
    seen = Monitored(model, optimizer, **EVERYTHING) if watch else None
    torch.manual_seed(1)
    for _ in loop:
        pass
    if seen is not None:
        seen.close()
    return weights(model), seen


def monitored(make: Make) -> Monitored:
    """The recording of a training, which left the weights of one without it."""
    expected, _ = run(make, watch=False)
    found, seen = run(make, watch=True)
    assert found == expected
    assert not [note for note in seen.notes if "switched off" in note]
    return seen


def column(seen: Monitored, data_type: str, name: str) -> dict[int, float]:
    return {step: value for (kind, of, step, _), value in seen.recorder.rows.items() if (kind, of) == (data_type, name)}


class Container(torch.optim.Optimizer):
    """An optimizer that is several."""

    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)
        groups = [group for one in optimizers for group in one.param_groups]
        super().__init__(groups, {})

    def step(self, closure=None):
        for one in self.optimizers:
            one.step()


class Plain:
    """The same as a plain object that adds nothing."""

    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)

    def step(self):
        for one in self.optimizers:
            one.step()

    def zero_grad(self):
        for one in self.optimizers:
            one.zero_grad()


@pytest.mark.parametrize("kind", [Container, Plain])
def test_containers(kind):
    consumed, kept = [], []

    def make(model):
        inner = (
            torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
            torch.optim.AdamW(model[2].parameters(), lr=0.1),
        )
        optimizer = kind(*inner)

        def loop():
            for _ in range(3):
                backward(model)
                consumed.append(norm(model[0].weight.grad))
                state = inner[1].state.get(model[2].weight)
                kept.append(state and norm(state["exp_avg"]))
                optimizer.step()
                optimizer.zero_grad()
                yield

        return optimizer, loop()

    seen = monitored(make)
    assert [event.step for event in seen.recorder.events] == [0, 1, 2]
    assert column(seen, "grad_reduced", "0.weight") == pytest.approx(dict(enumerate(consumed[3:])))
    assert column(seen, "exp_avg", "2.weight") == pytest.approx({1: kept[4], 2: kept[5]})
    assert column(seen, "state", "0.weight.momentum_buffer").keys() == {1, 2}
    assert not seen.recorder.doubled()


class Private(torch.optim.Optimizer):
    """As Opacus' `DPOptimizer` and plug-ins that accumulate: takes the gradients of several batches, clips, adds, and
    then lets the original one step."""

    def __init__(self, optimizer, batches):
        self.original_optimizer = optimizer
        self.batches, self.calls, self.summed = batches, 0, {}

    @property
    def param_groups(self):
        return self.original_optimizer.param_groups

    @property
    def state(self):
        return self.original_optimizer.state

    def zero_grad(self, set_to_none=True):
        self.original_optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.calls += 1
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter in parameters:
            self.summed[parameter] = self.summed.get(parameter, 0) + parameter.grad
        if self.calls % self.batches:
            return
        for parameter in parameters:
            parameter.grad = self.summed.pop(parameter) / 100
        self.original_optimizer.step()


def test_wrappers_that_clip_and_return_early():
    consumed = []

    def make(model):
        optimizer = Private(torch.optim.Adam(model.parameters(), lr=0.1), 2)
        optimizer.original_optimizer.register_step_pre_hook(
            lambda *_: consumed.append(norm(model[0].weight.grad)),
        )

        def loop():
            for _ in range(4):
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
                yield

        return optimizer, loop()

    seen = monitored(make)
    assert [event.last_micro_step for event in seen.recorder.events] == [1, 1]
    assert column(seen, "grad_reduced", "0.weight") == pytest.approx(dict(enumerate(consumed[2:])))
    assert column(seen, "exp_avg", "0.weight").keys() == {1}
    assert {key[3] for key in seen.recorder.rows if key[0] == "actv"} == {0, 1}


class Unused(torch.optim.Optimizer):
    """Has another one inside, which never steps."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.inner = torch.optim.Adam(parameters)
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.1)


def test_an_optimizer_inside_that_never_steps():
    def make(model):
        optimizer = Unused(model.parameters())

        def loop():
            for _ in range(3):
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
                yield

        return optimizer, loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 3
    assert column(seen, "param_origin", "0.weight").keys() == {1, 2}
    assert column(seen, "grad_reduced", "0.weight").keys() == {1, 2}


def test_state_that_is_created_before_the_first_step_and_between_steps():
    checkpoints = pytest.importorskip("torch.distributed.checkpoint.state_dict")

    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loop():
            checkpoints.get_optimizer_state_dict(model, optimizer)
            for _ in range(3):
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
                checkpoints.get_optimizer_state_dict(model, optimizer)
                yield

        return optimizer, loop()

    seen = monitored(make)
    assert [event.step for event in seen.recorder.events] == [0, 1, 2]
    assert min(column(seen, "grad_reduced", "0.weight").values()) > 0


def test_gradients_that_a_program_assigns_need_no_forward():
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loop():
            for _ in range(3):
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
                yield

        return optimizer, loop()

    assert len(monitored(make).recorder.events) == 3


def test_another_optimizer_takes_the_place_in_the_last_step():
    """Whether it has is known when the monitor is closed."""

    def make(model):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]

        def loop():
            for step in range(3):
                backward(model)
                optimizers[step == 2].step()
                optimizers[0].zero_grad()
                yield

        return optimizers[0], loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 3
    assert column(seen, "param_updated", "0.weight").keys() == {0, 1, 2}


def test_another_optimizer_takes_the_place_while_nothing_is_read():
    """As in dynamic mode before it starts, when nobody looks at forwards."""
    model = mlp()
    given, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with Monitored(model, given) as seen:
        for step in range(6):
            backward(model)
            (given if step < 2 else other).step()
            assert seen.clock.step == (step + 1 if step != 2 else 2)
    assert seen.clock.step == 6


def test_optimizers_that_are_made_in_every_step():
    def make(model):
        given = torch.optim.SGD(model.parameters(), lr=0.1)

        def loop():
            for _ in range(300):
                backward(model)
                torch.optim.SGD(model.parameters(), lr=0.1).step()
                given.zero_grad()
                yield

        return given, loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 300
    assert len(seen.notes) == 1
    assert len(seen.attachment._steps._others) < 10


def test_another_optimizer_takes_the_place(caplog):
    def make(model):
        first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def loop():
            optimizer = first
            for step in range(6):
                if step == 3:
                    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
                yield

        return first, loop()

    seen = monitored(make)
    assert [event.step for event in seen.recorder.events] == list(range(6))
    assert column(seen, "state", "0.weight.momentum_buffer").keys() == {1, 2}
    assert column(seen, "exp_avg", "0.weight").keys() == {4, 5}
    assert column(seen, "param_updated", "0.weight").keys() == set(range(6))
    assert {event.last_micro_step for event in seen.recorder.events} == {0}
    lines = [record.getMessage() for record in caplog.records if "another optimizer" in record.getMessage()]
    assert len(lines) == 1
    assert "step 4: the weights are now updated by another optimizer, Adam" in lines[0]
    assert not seen.missing().keys() & {("exp_avg", "0.weight"), ("exp_avg_sq", "0.weight")}


@pytest.mark.parametrize("first", [True, False])
def test_an_optimizer_beside_the_one_that_was_given(first):
    """It has one of the parameters, too; the steps are those of the one that was given."""

    def make(model):
        given = torch.optim.Adam(model.parameters(), lr=0.1)
        beside = torch.optim.SGD([model[0].bias], lr=0.1)
        order = (beside, given) if first else (given, beside)

        def loop():
            for _ in range(4):
                backward(model)
                for one in order:
                    one.step()
                given.zero_grad()
                yield

        return given, loop()

    seen = monitored(make)
    assert [event.step for event in seen.recorder.events] == list(range(4))
    assert column(seen, "exp_avg", "0.weight").keys() == {1, 2, 3}
    assert not [note for note in seen.notes if "another optimizer" in note]


def test_optimizers_that_step_in_a_backward():
    """As torch's tutorial and GaLore have it: one optimizer a parameter, and a dummy for schedulers."""
    consumed = {}

    def make(model):
        optimizers = {p: torch.optim.Adam([p], lr=0.1) for p in model.parameters()}
        dummy = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

        def hook(parameter):
            consumed.setdefault(id(parameter), []).append(norm(parameter.grad))
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)
        consumed["weight"] = id(model[0].weight)

        def loop():
            for _ in range(3):
                backward(model)
                dummy.step()
                dummy.zero_grad()
                yield

        return dummy, loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 3
    gradients = dict(enumerate(consumed[consumed["weight"]]))
    for data_type in ("grad_unreduced", "grad_reduced"):
        assert column(seen, data_type, "0.weight") == pytest.approx(gradients)
    assert column(seen, "exp_avg", "0.weight").keys() == {1, 2}
    origin, updated = (column(seen, data_type, "0.weight") for data_type in ("param_origin", "param_updated"))
    assert [origin[step] for step in (1, 2)] == pytest.approx([updated[step] for step in (0, 1)])
    assert origin[0] != pytest.approx(updated[0])
    assert not {key for key in seen.missing() if key[0] != "actv_grad"}


def pair(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(model[2].parameters(), lr=0.1),
    ]


def test_several_optimizers():
    def make(model):
        optimizers = pair(model)

        def loop():
            for _ in range(3):
                backward(model)
                for one in optimizers:
                    one.step()
                    one.zero_grad()
                yield

        return optimizers, loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 3
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        for data_type in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
            assert column(seen, data_type, name).keys() == {0, 1, 2}
    assert column(seen, "state", "0.weight.momentum_buffer").keys() == {1, 2}
    assert column(seen, "exp_avg", "2.weight").keys() == {1, 2}


def test_one_of_several_steps_again():
    consumed = []

    def make(model):
        optimizers = pair(model)
        consumed.clear()

        def loop():
            for step in range(6):
                backward(model)
                consumed.append(norm(model[0].weight.grad))
                optimizers[0].step()
                if step % 3 == 2:
                    optimizers[1].step()
                for one in optimizers:
                    one.zero_grad()
                yield

        return optimizers, loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 6
    assert column(seen, "param_updated", "2.weight").keys() == set(range(6))
    # What a backward computes for one that has stepped is consumed when it steps again.
    for data_type in ("grad_unreduced", "grad_reduced"):
        assert column(seen, data_type, "0.weight") == pytest.approx(dict(enumerate(consumed)))


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="before torch 2.3 it needs CUDA")
def test_a_scaler_skips_one_of_several():
    def make(model):
        optimizers = pair(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def loop():
            for step in range(3):
                scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
                if step == 1:
                    for parameter in model.parameters():
                        parameter.grad.fill_(float("inf"))
                for one in optimizers:
                    scaler.step(one)
                scaler.update()
                for one in optimizers:
                    one.zero_grad()
                yield

        return optimizers, loop()

    seen = monitored(make)
    assert [event.skipped for event in seen.recorder.events] == [False, True, False]


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: the second of its steps has a base optimizer step."""

    def __init__(self, parameters, base, **settings):
        super().__init__(parameters, settings)
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


def test_sharpness_aware_minimization():
    consumed = []

    def make(model):
        optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)

        def loop():
            for _ in range(3):
                batch = torch.randn(5, 4)
                model(batch).square().mean().backward()
                optimizer.first_step()
                model(batch).square().mean().backward()
                consumed.append(norm(model[0].weight.grad))
                optimizer.second_step()
                yield

        return optimizer, loop()

    seen = monitored(make)
    assert len(seen.recorder.events) == 3
    assert column(seen, "grad_reduced", "0.weight") == pytest.approx(dict(enumerate(consumed[3:])))
    assert column(seen, "exp_avg", "0.weight").keys() == {1, 2}


def test_nothing_is_left_behind():
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    model = mlp()
    before = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    with Monitored(model, torch.optim.SGD(model.parameters(), lr=0.1), **EVERYTHING):
        assert len(_global_optimizer_pre_hooks) == before[0] + 1
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == before


def test_a_forward_that_is_cut_off_is_no_micro_step() -> None:
    """The generator's, where the critic is trained: its output is detached, and no backward comes to it."""
    torch.manual_seed(0)
    generator, critic = mlp(), nn.Linear(2, 1)
    first, second = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    with Monitored(generator, first, **EVERYTHING) as seen:
        for _ in range(3):
            second.zero_grad()
            critic(generator(torch.randn(5, 4)).detach()).mean().backward()
            second.step()
            first.zero_grad()
            critic(generator(torch.randn(5, 4))).mean().backward()
            first.step()
    assert seen.missing() == {}
    # The numbers that rows have in flight begin with the one that counts.
    assert [(one.step, one.last_micro_step, one.first_micro_step) for one in seen.recorder.events] == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 1),
    ]
