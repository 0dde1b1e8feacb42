"""A training on a device without float64, monitored. `test_fake_device.py` runs this file in a process of its own."""

import csv
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import msmon

from . import fake_device as fake

RULES = fake.RULES
STEPS = 4
OPS = ["min", "max", "mean", "norm", "zeros", "nans", "std"]
ALL = {"wg_distribution": True, "param_distribution": True, "mv_distribution": True, "xy_distribution": True}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        parts = self.qkv(self.before(x)).split(width, -1)
        q, k, v = (part.reshape(batch, time, 4, width // 4).transpose(1, 2) for part in parts)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(width // 4)).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.behind(x))))


class GPT(nn.Module):
    """Of 28 parameters."""

    def __init__(self, width=32, layers=2, vocabulary=100, context=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.last(x) @ self.tokens.weight.T


class Trained:
    """What a training has left."""

    def __init__(self, path, config, device=fake.NAME, step=None):
        torch.manual_seed(0)
        self.path, self.device = path, device
        self.model = GPT().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.ids = torch.randint(100, (2, 16), generator=torch.Generator().manual_seed(1)).to(device)
        self.launches, self.waits, losses = [], [], []
        self.monitor = None
        if config is not None:
            (path / "config.json").write_text(json.dumps({"format": "csv", "ops": OPS, **config}))
            self.monitor = msmon.TrainerMon(path / "config.json", params_have_main_grad=False)
            self.monitor.set_monitor(self.model, grad_acc_steps=1, optimizer=self.optimizer)
        for number in range(STEPS):
            RULES.reset()
            losses.append((step or plain_step)(self, number))
            self.launches.append(sum(RULES.launches.values()))
            self.waits.append(dict(RULES.waits))
        self.losses = [loss.item() for loss in losses]
        if self.monitor is not None:
            self.monitor.close()

    def loss(self):
        return functional.cross_entropy(self.model(self.ids).flatten(0, 1), self.ids.flatten())

    def rows(self):
        found = {}
        for file in sorted(self.path.rglob("*.csv")):
            with file.open() as lines:
                for row in csv.DictReader(lines):
                    key = file.name.rsplit("_", 1)[0], row["step"], row.get("micro_step"), row["name"]
                    found[key] = row
        return found

    def coverage(self):
        (file,) = self.path.rglob("coverage.json")
        return json.loads(file.read_text())


def plain_step(trained, number):
    loss = trained.loss()
    loss.backward()
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    return loss.detach()


@pytest.fixture
def train(tmp_path, monkeypatch):
    def run(config, name="run", **options):
        path = tmp_path / name
        path.mkdir()
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(path / "out"))
        return Trained(path, config, **options)

    yield run
    fake.drain()


@pytest.fixture(autouse=True)
def _new_counts():
    RULES.reset()


def test_all_four_distributions(train):
    """As on the CPU; the same training bit by bit; only the writer waits; the same where the queue is lazy."""
    config = {**ALL, "all_xy": True}
    alone, trained = train(None, "alone"), train(config)
    assert trained.losses == alone.losses
    assert {name for waits in trained.waits for name in waits} <= {"msmon-writer"}
    with RULES.set(lazy=True):
        lazy = train(config, "lazy")
    assert lazy.losses == alone.losses
    assert {name for waits in lazy.waits for name in waits} <= {"msmon-writer"}
    assert lazy.rows() == trained.rows()
    coverage = trained.coverage()
    assert coverage["missing"] == []
    assert coverage["seen"] == coverage["expected"]
    assert sum(coverage["seen"].values()) == 237
    host = train(config, "host", device="cpu").rows()
    assert host.keys() == trained.rows().keys()
    for key, row in trained.rows().items():
        if key[1] != "0" or "qkv.bias" in key[3]:
            # The training itself is not the same to the last bit; the gradient of the keys' bias is rounding errors.
            continue
        for op in ("min", "max", "mean", "norm", "nans", "std"):
            size = float(host[key]["norm"])
            assert float(row[op]) == pytest.approx(float(host[key][op]), rel=1e-3, abs=1e-5 * size), (key, op)


def test_few_launches(train):
    config = {**ALL, "targets": {name: {} for name in ("tokens", "places", "blocks.0", "blocks.1", "last")}}
    alone, trained = train(None, "alone"), train(config)
    added = [more - less for more, less in zip(trained.launches, alone.launches, strict=True)]
    tensors = sum(trained.coverage()["seen"].values())
    fake.figure("tensors of 186 that have no row", 186 - tensors, before=186, most=0)
    fake.figure("launches added to a step, 28 parameters, wg + xy + param + mv", max(added), before=4164, most=100)
    waits = sum(count for counts in trained.waits for name, count in counts.items() if name != "msmon-writer")
    fake.figure("waits in the training's threads", waits, before=0, most=0)


def test_a_loss_scaler(train):
    scaler = torch.amp.GradScaler(fake.NAME, init_scale=1024.0)

    def step(trained, number):
        loss = trained.loss()
        (scaler.scale(loss) if trained.monitor else loss * 1).backward()
        if trained.monitor:
            # torch's scaler computes the reciprocal of the scale in float64.
            RULES.forbidden.clear()
            scaler.step(trained.optimizer)
            RULES.forbidden.update((torch.float64, torch.complex128))
            scaler.update()
        else:
            trained.optimizer.step()
        trained.optimizer.zero_grad()
        return loss.detach()

    config = {"wg_distribution": True, "xy_distribution": True, "all_xy": True}
    plain = train(config, "plain").rows()
    with RULES.set(lazy=True):
        scaled = train(config, "scaled", step=step).rows()
    for key, row in plain.items():
        assert float(scaled[key]["norm"]) == pytest.approx(float(row["norm"]), rel=1e-3), key


def test_a_scale_that_the_host_needs():
    """It is waited for where the gradients are on the host; the scaler may write another number there meanwhile."""
    from msmon_hooks.torch import loss_scale

    with RULES.set(lazy=True):
        scale = torch.tensor(65536.0).to(fake.NAME)
        on_host = loss_scale._copy_to_host(scale)
        scale.mul_(0.5)
        assert RULES.waits == {}
        assert on_host() == 65536.0


def test_start_and_stop_while_the_training_runs(train, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")

    def step(trained, number):
        config = trained.path / "config.json"
        if number in (0, 2):
            config.write_text(json.dumps({**ALL, "format": "csv", "dynamic_on": number == 0, "collect_times": 2}))
        return plain_step(trained, number)

    with RULES.set(lazy=True):
        trained = train({**ALL, "dynamic_on": False}, step=step)
    steps = {key[1] for key in trained.rows()}
    assert steps
    assert steps < {str(number) for number in range(STEPS)}


def test_a_step_that_is_captured(train):
    def step(trained, number):
        with RULES.set(capturing=number == 2):
            return plain_step(trained, number)

    features = {"mg_direction": True, "recording_l2_features": True, "l2_targets": {"linear_hook": []}}
    config = {**ALL, "all_xy": True, **features}
    alone, trained = train(None, "alone", step=step), train(config, step=step)
    assert trained.launches[2] == alone.launches[2]
    assert trained.waits[2] == {}
    assert {key[1] for key in trained.rows()} == {"0", "1", "3"}
    assert trained.coverage()["switched_off"] == []
    assert trained.coverage()["missing"] == []


def test_a_training_all_of_which_is_captured(train):
    def step(trained, number):
        with RULES.set(capturing=True):
            return plain_step(trained, number)

    trained = train({**ALL, "all_xy": True, "mg_direction": True}, step=step)
    coverage = trained.coverage()
    assert sum(coverage["seen"].values()) == 0
    assert {entry["reason"] for entry in coverage["missing"]} == {"inside a captured graph"}


def test_features(train):
    config = {"mg_direction": True, "mv_distribution": True, "ur_distribution": True, "format": ["csv", "tensorboard"]}
    config |= {"recording_l2_features": True, "l2_targets": {"linear_hook": []}}
    trained = train(config)
    host = train(config, "host", device="cpu")
    assert {name for waits in trained.waits[1:] for name in waits} <= {"msmon-writer"}
    assert trained.coverage()["missing"] == host.coverage()["missing"]
    expected = host.rows()
    for key, row in trained.rows().items():
        # The gradient of the keys' bias is 0 up to rounding, which has no direction.
        if key[0] in ("linear_hook", "other") and "qkv.bias" not in key[3]:
            for name in row.keys() & {"sr", "kernel_norm", "norm"}:
                assert float(row[name]) == pytest.approx(float(expected[key][name]), rel=1e-2, abs=1e-2), (key, name)
