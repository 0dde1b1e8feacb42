"""What the hooks may cost, counted: operators, copies to the host, calls, tensor memory."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from msmon.pytorch import TrainerMon

from .recorder import Monitored

MONITORS = {
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "mg_direction": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
    "stack_info": True,
    "ops": ["min", "max", "mean", "norm", "zeros", "nans"],
}


ONE = torch.ones(1)
FOLLOWS_STORAGES = pytest.mark.skipif(
    ONE.untyped_storage() is not ONE.untyped_storage(), reason="torch 2.1 makes an object of a storage each time"
)
STATISTICS = ("wg_distribution", "param_distribution", "mv_distribution", "xy_distribution", "all_xy")


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x))))


class Count(TorchDispatchMode):
    """Counts operators, and those that bring a value to the host."""

    def __init__(self):
        super().__init__()
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operators[str(function)] += 1
        return function(*args, **(kwargs or {}))


def model_and_optimizer(width: int = 16, blocks: int = 3):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Linear(width, 2))
    return model, torch.optim.AdamW(model.parameters())


def step(model, optimizer, batch) -> None:
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def monitor(write_config, output_dir):
    made = []

    def attach(model, optimizer, **fields):
        monitor = TrainerMon(write_config(**fields), params_have_main_grad=False)
        monitor.set_monitor(model, 1, optimizer)
        made.append(monitor)
        return monitor

    yield attach
    for one in made:
        one.close()


def operators_of_steps(model, optimizer, steps: int) -> list[Counter[str]]:
    batch = torch.randn(4, 16)
    found = []
    for _ in range(steps):
        with Count() as count:
            step(model, optimizer, batch)
        found.append(count.operators)
    return found


def test_operators(monitor):
    """Unsampled steps have those of the training and no other; sampled ones bring nothing to the host by themselves."""
    unmonitored = operators_of_steps(*model_and_optimizer(), 6)
    model, optimizer = model_and_optimizer()
    monitor(model, optimizer, **MONITORS, start_step=1, step_interval=3)
    monitored = operators_of_steps(model, optimizer, 6)
    for number in (0, 2, 3, 5):
        assert monitored[number] == unmonitored[number], number
    for number in (1, 4):
        added = monitored[number] - unmonitored[number]
        waits = [name for name in added if "_local_scalar_dense" in name or "nonzero" in name or "_to_copy" in name]
        # On the CPU the features' numbers need conversions, but no statistic makes a copy.
        assert not [name for name in waits if "_to_copy" not in name]


def test_statistics_add_no_operator(monitor):
    """The compiled kernel reads the tensors where they lie."""
    pytest.importorskip("llvmlite")
    fields = {name: value for name, value in MONITORS.items() if not name.startswith(("mg", "recording", "l2"))}
    unmonitored = operators_of_steps(*model_and_optimizer(), 2)
    model, optimizer = model_and_optimizer()
    monitor(model, optimizer, **fields)
    for found, expected in zip(operators_of_steps(model, optimizer, 2), unmonitored, strict=True):
        assert set(found - expected) <= {"aten.detach.default", "aten.alias.default"}


def test_one_transfer_a_sampled_step(monitor):
    model, optimizer = model_and_optimizer()
    watched = monitor(model, optimizer, **MONITORS, step_interval=2)
    buffer = watched._session.collector._buffer
    transfers = []
    transfer = buffer.transfer
    buffer.transfer = lambda: transfers.append(1) or transfer()
    counts = []
    for _ in range(4):
        step(model, optimizer, torch.randn(4, 16))
        counts.append(len(transfers))
    assert counts == [1, 1, 2, 2]


FRAMES = {
    "actv": 5,
    "actv_grad": 3,
    "grad_unreduced": 6,
    "grad_reduced": 10,
    "exp_avg": 11,
    "exp_avg_sq": 11,
    "param_origin": 10,
    "param_updated": 14,
}
"""How many functions of ours lie between what torch calls and the observer, at most."""


def test_the_way_from_a_hook_to_the_observer_is_short():
    model, optimizer = model_and_optimizer()
    kinds = ("activations", "activation_gradients", "weight_gradients", "moments", "weights")
    frames: dict[str, set[int]] = {}
    with Monitored(model, optimizer, **dict.fromkeys(kinds, True)) as monitored:

        def record(refs, handles):
            ours = [one for one in traceback.extract_stack() if "/msmon_hooks/" in one.filename]
            frames.setdefault(refs[0].data_type, set()).add(len(ours))

        monitored.recorder.record = record
        for _ in range(2):
            step(model, optimizer, torch.randn(4, 16))
    assert frames.keys() == FRAMES.keys()
    assert all(max(found) <= FRAMES[data_type] for data_type, found in frames.items()), frames


class Peak(TorchDispatchMode):
    """Bytes of the storages that are alive, at their peak, as far as operators make them."""

    def __init__(self):
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self._see(value.untyped_storage())
        return result

    def _see(self, storage) -> None:
        key = storage._cdata
        if key in self.alive or not storage.nbytes():
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def peak_memory(model, optimizer, steps: int = 3) -> int:
    with Peak() as peak:
        for _ in range(steps):
            step(model, optimizer, torch.randn(64, 64))
    return peak.peak


@FOLLOWS_STORAGES
@pytest.mark.parametrize("task", ["wg_distribution", "param_distribution", "mv_distribution", "xy_distribution", "all"])
def test_peak_tensor_memory(task, monitor):
    unmonitored = peak_memory(*model_and_optimizer(64, 6))
    model, optimizer = model_and_optimizer(64, 6)
    fields = dict.fromkeys(STATISTICS, True) if task == "all" else {task: True, "all_xy": True}
    monitor(model, optimizer, **fields)
    assert peak_memory(model, optimizer) <= 1.01 * unmonitored


def test_nothing_grows(monitor, output_dir):
    """Python's objects after 60 steps are as many as after 20."""
    model, optimizer = model_and_optimizer()
    monitor(model, optimizer, **dict.fromkeys(STATISTICS, True), format="api")
    counts = []
    for number in range(60):
        step(model, optimizer, torch.randn(4, 16))
        if number in (20, 59):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] <= counts[0] * 1.01 + 50


def calls_in_a_step(model, optimizer) -> int:
    """Functions of ours that Python calls in one step of the training."""
    found = 0

    def count(frame, event, argument):
        nonlocal found
        found += event == "call" and "/src/msmon" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        step(model, optimizer, torch.randn(4, 16))
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="comprehensions are calls of their own")
def test_an_unsampled_step_calls_little(monitor):
    """One or two functions a hook of a module or parameter, and a fixed number around the optimizer's step."""
    model, optimizer = model_and_optimizer(blocks=6)
    monitor(model, optimizer, **dict.fromkeys(STATISTICS, True), step_interval=1000)
    for _ in range(3):
        step(model, optimizer, torch.randn(4, 16))
    modules = sum(1 for module in model.modules() if type(module).forward is not nn.Module.forward)
    parameters = len(list(model.parameters()))
    assert calls_in_a_step(model, optimizer) <= 2 * modules + 2 * parameters + 110
