"""torch's GradScaler: values are those without it, and a step that it skips is a step."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from msmon_hooks import Clock

from .recorder import Monitored

if not hasattr(torch.amp, "GradScaler"):
    pytest.skip("before torch 2.3 a GradScaler needs CUDA", allow_module_level=True)

SCALE = 1024.0


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def run(
    *, scaled: bool, fused: bool = False, unscale: bool = False, bad_step: int = -1, steps: int = 3, watch: bool = True
):
    """Train; a batch of infinities in ``bad_step``."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled)
    monitored = None
    if watch:
        monitored = Monitored(
            model,
            optimizer,
            weight_gradients=True,
            activation_gradients=True,
            moments=True,
            weights=True,
        )
    torch.manual_seed(1)
    for step in range(steps):
        batch = torch.randn(5, 4)
        if step == bad_step:
            batch = batch / 0.0
        scaler.scale(model(batch).pow(2).mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if monitored is not None:
        monitored.close()
    return monitored, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_values_are_unscaled(fused, unscale):
    plain, _ = run(scaled=False, fused=fused)
    scaled, weights = run(scaled=True, fused=fused, unscale=unscale)
    assert scaled.recorder.rows.keys() == plain.recorder.rows.keys()
    for row, value in plain.recorder.rows.items():
        assert scaled.recorder.rows[row] == pytest.approx(value, rel=1e-5), row
    _, unmonitored = run(scaled=True, fused=fused, unscale=unscale, watch=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, unmonitored, strict=True))


def test_a_skipped_step_has_gradients_but_no_update():
    monitored, weights = run(scaled=True, bad_step=1)
    _, unmonitored = run(scaled=True, bad_step=1, watch=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, unmonitored, strict=True))
    rows = monitored.recorder.rows
    assert [event.skipped for event in monitored.recorder.events] == [False, True, False]
    assert monitored.coverage.to_dict()["skipped_steps"] == [1]
    assert not torch.isfinite(torch.tensor(rows["grad_reduced", "0.weight", 1, None]))
    assert rows["param_origin", "0.weight", 1, None] == rows["param_origin", "0.weight", 2, None]
    assert ("param_updated", "0.weight", 1, None) not in rows
    assert ("param_updated", "0.weight", 2, None) in rows


def test_a_fused_optimizer_skips_on_the_device():
    """The optimizer's step is called, and only the device knows that it changed nothing."""
    monitored, weights = run(scaled=True, fused=True, bad_step=1)
    _, unmonitored = run(scaled=True, fused=True, bad_step=1, watch=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, unmonitored, strict=True))
    events = monitored.recorder.events
    assert [event.skipped for event in events] == [False, False, False]
    assert [monitored.recorder.values[event.skip_handle] for event in events] == [[0.0], [1.0], [0.0]]


def test_several_optimizers_under_one_scaler():
    """The steps are those of the given optimizer, whichever is skipped; a loss that nobody scales is not unscaled."""
    torch.manual_seed(0)
    one, two = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, two)]
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with Monitored(two, optimizers[1], weight_gradients=True) as monitored:
        batch = torch.ones(2, 4)
        for step in range(2):
            scaler.scale(one(batch / (step == 0)).mean()).backward()
            scaler.step(optimizers[0])
            # Not scaled: its gradients are as they are.
            two(batch).mean().backward()
            optimizers[1].step()
            scaler.update()
            one.zero_grad()
            two.zero_grad()
    assert [event.skipped for event in monitored.recorder.events] == [False, False]
    for step in range(2):
        assert monitored.recorder.rows["grad_unreduced", "bias", step, None] == 1.0
        assert monitored.recorder.rows["grad_reduced", "weight", step, None] == 2.0


def test_gradients_between_backward_and_step():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with Monitored(model, optimizer, weight_gradients=True) as monitored:
        scale = monitored.attachment.loss_scale
        assert scale.between() is None
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        assert float(scale.between()) == SCALE
        scaler.unscale_(optimizer)
        assert scale.between() is None


class OwnScaler(torch.amp.GradScaler):
    """As engines have them, with their own ``scale``."""

    def scale(self, outputs):
        return super().scale(outputs)


def test_the_class_is_given_back():
    before = {
        (cls, name): vars(cls).get(name) for cls in (torch.amp.GradScaler, OwnScaler) for name in ("scale", "step")
    }
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = Monitored(model, optimizer, weight_gradients=True)
    second = Monitored(nn.Linear(2, 2), torch.optim.SGD(model.parameters(), lr=0.1), clock=Clock(), weights=True)
    assert torch.amp.GradScaler.step is not before[torch.amp.GradScaler, "step"]
    scaler = OwnScaler("cpu", init_scale=SCALE)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.step(optimizer)
    assert first.recorder.rows["grad_unreduced", "2.bias", 0, None] == pytest.approx(2**0.5)
    # Not in the order of a stack.
    first.close()
    second.close()
    assert {key: vars(key[0]).get(key[1]) for key in before} == before


class Queue:
    """Stands in for an accelerator: a copy to the host arrives when it is waited for."""

    def __init__(self):
        self.pending, self.waited = [], 0

    def device(self, device):
        return contextlib.nullcontext()

    def Event(self):
        queue, copies = self, []

        class Event:
            def record(self):
                copies.extend(queue.pending)

            def synchronize(self):
                queue.waited += 1
                for copy, value in copies:
                    copy.fill_(value)

        return Event()


QUEUE = Queue()


class OnDevice(torch.Tensor):
    """A number whose copies to the host hold something else for a while."""

    device = torch.device("xpu", 0)

    def to(self, device, *, non_blocking=False):
        assert (device, non_blocking) == ("cpu", True)
        copy = torch.tensor(7e-32)
        QUEUE.pending.append((copy, SCALE))
        return copy


class ScalerOfADevice(torch.amp.GradScaler):
    def scale(self, outputs):
        return outputs * SCALE

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= SCALE
        return optimizer.step()


def test_a_scale_on_another_device_is_read_when_it_has_arrived(monkeypatch):
    """Gradients in the memory of the host, the loss and its scale elsewhere."""
    monkeypatch.setattr(torch, "xpu", QUEUE)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ScalerOfADevice("cpu", init_scale=SCALE)
    scaler._scale = torch.tensor(SCALE).as_subclass(OnDevice)
    with Monitored(model, optimizer, weight_gradients=True, activation_gradients=True) as monitored:
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
    rows = monitored.recorder.rows
    for row in (("actv_grad", ".output", 0, 0), ("grad_unreduced", "bias", 0, None), ("grad_reduced", "bias", 0, None)):
        assert rows[row] == pytest.approx(2.0 if row[0] != "actv_grad" else 2**0.5), row
    # One copy for the loss, begun with it.
    assert len(QUEUE.pending) == 1
    assert QUEUE.waited > 0
