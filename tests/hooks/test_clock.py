"""The clock's events as whole lists: what counts as a step and a micro-step in trainings of several kinds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msmon_hooks import Clock, Schedule, StepEnd

from .recorder import Monitored


class Tracing(Clock):
    """Writes down what it is told."""

    def __init__(self, trace: list[str], **settings) -> None:
        super().__init__(**settings)
        self.trace = trace

    def forward_begins(self, stage: int = 0) -> None:
        super().forward_begins(stage)
        self.trace.append(f"forward {self.step}.{self.micro_step_of(stage)}")

    def backward_reaches(self, micro_step: int) -> None:
        # Every output of the root tells of it.
        event = f"backward {self.step}.{micro_step}"
        super().backward_reaches(micro_step)
        if self.trace[-1] != event:
            self.trace.append(event)

    def step_ends(self, **settings) -> StepEnd:
        event = super().step_ends(**settings)
        self.trace.append(f"{'skipped step' if event.skipped else 'step'} {event.step}.{event.last_micro_step}")
        return event


@pytest.fixture
def trace() -> list[str]:
    return []


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def backward(model: nn.Module) -> torch.Tensor:
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    return loss


def watch(model, optimizer, trace, *, request=None, **settings) -> Monitored:
    """Traces what the clock is told, and when the gradients are read that an update consumes."""
    clock = Tracing(trace, **settings)
    request = request or {"weight_gradients": True, "activations": True, "moments": True}
    monitored = Monitored(model, optimizer, clock=clock, **request)
    record = monitored.recorder.record

    def recorded(refs, handles):
        if refs[0].data_type == "grad_reduced":
            trace.append(f"gradients {clock.step}.{clock.micro_step}")
        record(refs, handles)

    monitored.recorder.record = recorded
    return monitored


def test_plain_loop(trace):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, trace, start_iteration=7):
        for _ in range(2):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
    assert trace == [
        *("forward 7.0", "backward 7.0", "gradients 7.0", "step 7.0"),
        *("forward 8.0", "backward 8.0", "gradients 8.0", "step 8.0"),
    ]


def test_accumulation(trace):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, trace, grad_acc_steps=2) as monitored:
        for _ in range(2):
            backward(model)
            backward(model)
            optimizer.step()
    assert trace == [
        *("forward 0.0", "backward 0.0", "forward 0.1", "backward 0.1", "gradients 0.1", "step 0.1"),
        *("forward 1.0", "backward 1.0", "forward 1.1", "backward 1.1", "gradients 1.1", "step 1.1"),
    ]
    assert [name for kind, name, step, _ in monitored.recorder.rows if (kind, step) == ("grad_unreduced", 1)] == [
        *("2.bias", "2.weight", "0.bias", "0.weight")
    ]


def test_forwards_before_their_backwards(trace):
    """As pipelines do: the gradient is complete when the last micro-step's backward ends, not when its forward does."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    request = {"weight_gradients": True, "each_micro_step": True, "activation_gradients": True}
    with watch(model, optimizer, trace, grad_acc_steps=3, request=request) as monitored:
        losses = [model(torch.full((1, 4), float(n))).sum() for n in range(3)]
        for loss in losses:
            loss.backward()
        optimizer.step()
    assert trace == [
        *("forward 0.0", "forward 0.1", "forward 0.2", "backward 0.0", "backward 0.1", "backward 0.2"),
        *("gradients 0.2", "step 0.2"),
    ]
    rows = monitored.recorder.rows
    bias = [rows["grad_unreduced", "2.bias", 0, micro_step] for micro_step in range(3)]
    assert bias == pytest.approx([2**0.5, 2 * 2**0.5, 3 * 2**0.5])
    assert [key[3] for key in rows if key[:2] == ("actv_grad", ".output")] == [0, 1, 2]


def test_virtual_stages_count_their_own(trace):
    """Of two chunks the first runs ahead."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    request = {"activations": True}
    with watch([first, second], optimizer, trace, grad_acc_steps=2, request=request) as monitored:
        hidden = [first(torch.randn(1, 4)) for _ in range(2)]
        for value in hidden:
            second(value).sum().backward()
        optimizer.step()
    assert trace == [
        *("forward 0.0", "forward 0.1"),
        *("forward 0.0", "backward 0.0", "forward 0.1", "backward 0.1", "step 0.1"),
    ]
    stages = {(ref.vpp_stage, ref.micro_step) for ref in monitored.recorder.refs.values()}
    assert stages == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_closures_of_lbfgs(trace):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, tolerance_grad=0, tolerance_change=0)
    gradients = []

    def closure():
        optimizer.zero_grad()
        loss = backward(model)
        gradients.append(model[0].weight.grad.norm().item())
        return loss

    with watch(model, optimizer, trace) as monitored:
        for _ in range(2):
            optimizer.step(closure)
    assert trace == [
        *("forward 0.0", "backward 0.0", "gradients 0.0"),
        *("forward 0.1", "backward 0.1", "gradients 0.1"),
        *("forward 0.2", "backward 0.2", "gradients 0.2", "step 0.2"),
        *("forward 1.0", "backward 1.0", "gradients 1.0"),
        *("forward 1.1", "backward 1.1", "gradients 1.1"),
        *("forward 1.2", "backward 1.2", "gradients 1.2", "step 1.2"),
    ]
    rows = monitored.recorder.rows
    for step, last in ((0, gradients[2]), (1, gradients[5])):
        assert rows["grad_reduced", "0.weight", step, None] == pytest.approx(last)
        assert rows["grad_unreduced", "0.weight", step, None] == pytest.approx(last)


def test_closure_by_keyword_and_its_loss(trace):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, trace):
        loss = optimizer.step(closure=lambda: backward(model))
    assert loss.requires_grad
    assert trace == ["forward 0.0", "backward 0.0", "gradients 0.0", "step 0.0"]


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="before torch 2.3 it needs CUDA")
def test_skipped_step_of_a_grad_scaler(trace):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer, trace) as monitored:
        for step in range(3):
            batch = torch.full((1, 4), float("inf") if step == 1 else 1.0)
            scaler.scale(model(batch).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert trace == [
        *("forward 0.0", "backward 0.0", "gradients 0.0", "step 0.0"),
        *("forward 1.0", "backward 1.0", "gradients 1.0", "skipped step 1.0"),
        *("forward 2.0", "backward 2.0", "gradients 2.0", "step 2.0"),
    ]
    assert monitored.coverage.to_dict()["skipped_steps"] == [1]


class Gan(nn.Module):
    """Generator and discriminator in one module that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 4)
        self.discriminator = nn.Linear(4, 1)


@pytest.mark.parametrize("watched", ["discriminator", "generator", "both"])
def test_gan(trace, watched):
    torch.manual_seed(0)
    gan = Gan()
    optimizers = {name: torch.optim.Adam(getattr(gan, name).parameters()) for name in ("generator", "discriminator")}
    model = gan if watched == "both" else getattr(gan, watched)
    optimizer = optimizers["discriminator" if watched == "both" else watched]
    with watch(model, optimizer, trace) as monitored:
        for _ in range(2):
            fake = gan.generator(torch.randn(3, 2))
            (gan.discriminator(fake.detach()) - gan.discriminator(torch.randn(3, 4))).mean().backward()
            optimizers["discriminator"].step()
            gan.zero_grad()
            (-gan.discriminator(fake)).mean().backward()
            optimizers["generator"].step()
            gan.zero_grad()
    gradients = {key[:3] for key in monitored.recorder.rows if key[0] == "grad_reduced"}
    if watched == "discriminator":
        assert trace == [
            *("forward 0.0", "forward 0.1", "backward 0.1", "backward 0.0", "gradients 0.1", "step 0.1"),
            *("forward 1.0", "backward 1.0", "forward 1.1", "forward 1.2"),
            *("backward 1.2", "backward 1.1", "gradients 1.2", "step 1.1"),
            *("forward 2.0", "backward 2.0"),
        ]
    elif watched == "generator":
        assert trace == [
            *("forward 0.0", "backward 0.0", "gradients 0.0", "step 0.0"),
            *("forward 1.0", "backward 1.0", "gradients 1.0", "step 1.0"),
        ]
    else:
        # No root forward: micro-steps begin with calls of its modules, and steps are those of the given optimizer.
        assert trace == [
            *("forward 0.0", "backward 0.0", "gradients 0.0", "step 0.0"),
            *("forward 1.0", "backward 1.0", "forward 1.1", "backward 1.1", "gradients 1.1", "step 1.0"),
            *("forward 2.0", "backward 2.0"),
        ]
        assert {name for _, name, _ in gradients} == {"discriminator.weight", "discriminator.bias"}
        reasons = monitored.missing()
        assert reasons["grad_reduced", "generator.weight"] == "not in the optimizer that was given"
        assert ("actv", "discriminator@1.output", 0, 0) in monitored.recorder.rows
    assert len(gradients) == 4


def test_evaluation_between_steps(trace):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, trace, grad_acc_steps=2) as monitored:
        for _ in range(2):
            backward(model)
            model.eval()
            model(torch.randn(5, 4))
            with torch.no_grad():
                model(torch.randn(5, 4))
            model.train()
            with torch.no_grad():
                model(torch.randn(5, 4))
                model[0](torch.randn(5, 4))
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
    assert trace == [
        *("forward 0.0", "backward 0.0", "forward 0.1", "backward 0.1", "gradients 0.1", "step 0.1"),
        *("forward 1.0", "backward 1.0", "forward 1.1", "backward 1.1", "gradients 1.1", "step 1.1"),
    ]
    names = {key[1] for key in monitored.recorder.rows if key[0] == "actv"}
    assert not [name for name in names if "@" in name]
    assert len([key for key in monitored.recorder.rows if key[0] == "actv"]) == 2 * 2 * 8


def test_an_exception_in_a_forward(trace):
    """What follows is not taken for a part of the forward that raised, which no update used: it is no micro-step."""

    class Fragile(nn.Sequential):
        def forward(self, x):
            x = self[0](x)
            if x.isnan().any():
                raise ValueError("NaN")
            return self[1](x)

    model = Fragile(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, trace) as monitored:
        with pytest.raises(ValueError, match="NaN"):
            model(torch.full((1, 4), float("nan")))
        with torch.no_grad():
            model[0](torch.randn(1, 4))
        backward(model)
        optimizer.step()
        backward(model)
        optimizer.step()
    assert trace == [
        *("forward 0.0", "forward 0.1", "backward 0.1", "gradients 0.1", "step 0.0"),
        *("forward 1.0", "backward 1.0", "gradients 1.0", "step 1.0"),
    ]
    assert [event.first_micro_step for event in monitored.recorder.events] == [1, 0]
    assert [key for key in monitored.recorder.rows if key[:2] == ("actv", ".output")] == [
        *(("actv", ".output", 0, 0), ("actv", ".output", 1, 0))
    ]
    assert not [name for _, name, _, _ in monitored.recorder.rows if "@" in name]


def test_schedule(trace):
    """Between samples nothing is read, and the backward is not even hooked."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = Schedule(start_step=1, step_interval=2, collect_times=2)
    with watch(model, optimizer, trace, schedule=schedule) as monitored:
        for _ in range(7):
            backward(model)
            optimizer.step()
    assert [event for event in trace if event.startswith(("backward", "step"))] == [
        *("step 0.0", "backward 1.0", "step 1.0", "step 2.0", "backward 3.0"),
        *("step 3.0", "step 4.0", "step 5.0", "step 6.0"),
    ]
    assert {key[2] for key in monitored.recorder.rows} == {1, 3}
    assert [event.step for event in monitored.recorder.events if event.sampled] == [1, 3]
