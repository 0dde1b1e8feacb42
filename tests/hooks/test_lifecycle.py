"""What the hooks put onto other people's objects, and what is left of it."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch import nn

from msmon_hooks import Registrations

from .recorder import Monitored

EVERYTHING = {
    "weight_gradients": True,
    "moments": True,
    "weights": True,
    "activations": True,
    "activation_gradients": True,
    "on_structure": lambda document: None,
    "on_stacks": lambda stacks: None,
}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def one_step(model, optimizer) -> None:
    model(torch.randn(5, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    count = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    for module in model.modules():
        count += len(module._forward_hooks) + len(module._forward_pre_hooks)
        count += len(module._backward_hooks) + len(module._backward_pre_hooks)
    for parameter in model.parameters():
        count += len(parameter._backward_hooks or ()) + len(parameter._post_accumulate_grad_hooks or ())
    return count


def test_nothing_is_left_after_close():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    monitored = Monitored(model, optimizer, **EVERYTHING)
    assert hooks_of(model, optimizer) > 20
    for _ in range(2):
        one_step(model, optimizer)
    assert set(vars(model)) == set(vars(mlp()))
    monitored.close()
    monitored.close()
    assert hooks_of(model, optimizer) == 0
    rows = len(monitored.recorder.rows)
    one_step(model, optimizer)
    assert len(monitored.recorder.rows) == rows


def test_closing_in_the_middle_of_a_step():
    """Hooks that sit in a graph do nothing any more."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    monitored = Monitored(model, optimizer, **EVERYTHING)
    batch = torch.randn(5, 4, requires_grad=True)
    loss = model(batch).pow(2).mean()
    rows = len(monitored.recorder.rows)
    monitored.close()
    loss.backward()
    optimizer.step()
    assert len(monitored.recorder.rows) == rows
    assert batch._backward_hooks is None or len(batch._backward_hooks) == 0


def test_retiring_from_a_callback():
    """``collect_times`` is reached while the optimizer runs through its hooks."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    monitored = Monitored(model, optimizer, **EVERYTHING)
    end = monitored.recorder.step_end
    monitored.recorder.step_end = lambda event: (end(event), monitored.attachment.retire())
    one_step(model, optimizer)
    one_step(model, optimizer)
    assert hooks_of(model, optimizer) == 0
    assert len(monitored.recorder.events) == 1


@pytest.mark.parametrize("close", [True, False])
def test_model_and_monitor_die(close):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    monitored = Monitored(model, optimizer, **EVERYTHING)
    one_step(model, optimizer)
    model(torch.randn(5, 4, requires_grad=True)).sum().backward()
    watched = [
        weakref.ref(one) for one in (model, optimizer, model[0].weight, monitored.attachment, monitored.recorder)
    ]
    if close:
        monitored.close()
    del model, optimizer, monitored
    gc.collect()
    assert [reference() for reference in watched] == [None] * len(watched)


def test_tensors_die_with_the_training():
    """No activation and no gradient is kept: they die when an unmonitored training would let them."""

    class Keep(nn.Module):
        def forward(self, x):
            x = x * 2
            alive.append(weakref.ref(x))
            x.register_hook(lambda gradient: gradients.append(weakref.ref(gradient)))
            return x

    alive, gradients = [], []
    model = nn.Sequential(nn.Linear(4, 4), Keep(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    with Monitored(model, optimizer, **EVERYTHING):
        model(torch.randn(5, 4)).sum().backward()
        assert [reference() for reference in alive] == [None]
        assert [reference() for reference in gradients] == [None]


def test_two_monitors_on_one_model():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    first = Monitored(model, optimizer, **EVERYTHING)
    second = Monitored(model, optimizer, **EVERYTHING)
    one_step(model, optimizer)
    first.close()
    one_step(model, optimizer)
    second.close()
    assert hooks_of(model, optimizer) == 0
    assert {key for key in second.recorder.rows if key[2] == 0} == set(first.recorder.rows)
    assert {key[2] for key in second.recorder.rows} == {0, 1}


def test_copies_record_nothing_and_load_without_us(tmp_path):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        one_step(model, optimizer)
        rows = dict(monitored.recorder.times)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            copied = copy.deepcopy(model)
            copied_optimizer = copy.deepcopy(optimizer)
            again = pickle.loads(pickle.dumps(model))
            torch.save(model, tmp_path / "model.pt")
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
            loaded = torch.load(io.BytesIO((tmp_path / "model.pt").read_bytes()), weights_only=False)
        for other in (copied, again, loaded):
            other(torch.randn(5, 4)).sum().backward()
        copied_optimizer.step()
        assert dict(monitored.recorder.times) == rows
        one_step(model, optimizer)
        assert len(monitored.recorder.times) > len(rows)
    program = (
        "import sys, torch; model = torch.load(sys.argv[1], weights_only=False);"
        "model(torch.ones(1, 4)).sum().backward();"
        "assert not [name for name in sys.modules if name.startswith('msmon')]; print('loaded')"
    )
    command = [
        sys.executable,
        "-S",
        "-c",
        f"import sys; sys.path[:] = {[p for p in sys.path if '/packages/msmon' not in p]!r}; {program}",
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "model.pt")], capture_output=True, text=True, env={"PATH": ""}, check=False
    )
    assert done.stdout == "loaded\n", done.stderr


class Bare:
    """An optimizer without hooks of its own, as some engines have."""

    def __init__(self, parameters):
        self.inner = torch.optim.SGD(parameters, lr=0.1)
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state

    def step(self, closure=None):
        return self.inner.step(closure)

    def zero_grad(self):
        self.inner.zero_grad()


class Inheriting(torch.optim.Optimizer):
    """Inherits the methods that register hooks, but runs none: its ``step`` was never prepared for that."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["bare", "inheriting"])
def test_an_optimizer_without_hooks(kind):
    model = mlp()
    optimizer = Bare(model.parameters()) if kind == "bare" else Inheriting(torch.optim.SGD(model.parameters(), lr=0.1))
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        one_step(model, optimizer)
        optimizer.step(lambda: model(torch.randn(5, 4)).pow(2).mean().backward())
    assert "step" not in vars(optimizer)
    assert [event.step for event in monitored.recorder.events] == [0, 1]
    assert ("grad_reduced", "0.weight", 1, None) in monitored.recorder.rows
    one_step(model, optimizer)
    assert len(monitored.recorder.events) == 2


def test_steps_of_a_compiled_model():
    """torch.compile of torch 2.1 keeps optimizers from running their hooks."""
    compiled = torch.compile(nn.Linear(2, 1), backend="eager")
    optimizer = torch.optim.Adam(compiled.parameters())
    with Monitored(compiled, optimizer, weight_gradients=True) as monitored:
        for _ in range(2):
            compiled(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = {(row[1], row[2]) for row in monitored.recorder.rows if row[0] == "grad_reduced"}
    assert steps == {("weight", 0), ("weight", 1), ("bias", 0), ("bias", 1)}


def test_schedulers_draw_no_warning():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with Monitored(model, optimizer, **EVERYTHING) as monitored:
            later = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            for _ in range(2):
                one_step(model, optimizer)
                scheduler.step()
                later.step()
        one_step(model, optimizer)
    assert len(monitored.recorder.events) == 2


class Loop:
    def step(self):
        return "plain"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0)])
def test_patches_come_off_in_any_order(order):
    loop = Loop()
    owners = [Registrations() for _ in range(3)]
    for number, owner in enumerate(owners):
        owner.patch(loop, "step", lambda original, number=number: lambda: f"{number} {original()}")
    assert loop.step() == "2 1 0 plain"
    for number in order:
        owners[number].close()
    assert "step" not in vars(loop)
    assert loop.step() == "plain"


def test_a_foreign_patch_stays():
    loop, owner = Loop(), Registrations()
    owner.patch(loop, "step", lambda original: lambda: f"ours {original()}")
    ours = loop.step
    loop.step = lambda: f"theirs {ours()}"
    owner.close()
    assert loop.step() == "theirs ours plain"


def test_a_failing_part_leaves_the_others():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    monitored = Monitored(model, optimizer, **EVERYTHING)
    measure = monitored.recorder.measure

    def failing(tensors, scale=None):
        if tensors[0].shape == (5, 8):
            raise RuntimeError("broken kernel")
        return measure(tensors, scale)

    monitored.recorder.measure = failing
    with monitored:
        for _ in range(2):
            one_step(model, optimizer)
    assert {key[0] for key in monitored.recorder.rows} >= {"grad_reduced", "exp_avg", "param_updated"}
    assert [event.step for event in monitored.recorder.events] == [0, 1]
    assert any("broken kernel" in note for note in monitored.notes)
