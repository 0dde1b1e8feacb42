"""Healthy models of other kinds than the bench's, under msmon with the recommended rules: no alarm. And a NaN."""

import json
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from msmon.pytorch import TrainerMon
from msmon_alert import find_anomaly_files, first_anomalies

from .faults.training import CONFIG

STEPS = 120


class Convolutions(nn.Sequential):
    """Batch norm makes the biases before it superfluous: their gradients are rounding noise."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.2),
            nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(5),
        )  # fmt: skip
        self(torch.zeros(2, 1, 12, 12))

    def batches(self, generator):
        patterns = torch.from_numpy(generator.normal(size=(5, 1, 12, 12))).float()
        while True:
            labels = torch.from_numpy(generator.integers(0, 5, 32))
            yield patterns[labels] + torch.from_numpy(generator.normal(size=(32, 1, 12, 12))).float(), labels


class Sequences(nn.Module):
    """Token ids of sequences whose lengths differ from batch to batch: the next id is a function of the last two."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40)

    def batches(self, generator):
        while True:
            ids = generator.zipf(1.5, size=(16, int(generator.integers(8, 25)))) % 40
            yield torch.from_numpy(ids), torch.from_numpy((ids + np.roll(ids, 1, axis=1)) % 40).flatten()


class Recurrent(Sequences):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True, dropout=0.1)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0]).flatten(0, 1)


class Encoder(Sequences):
    """Its causal mask holds -Inf."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def encode(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.encoder(x, mask=mask, is_causal=True))

    def forward(self, x):
        return self.encode(self.embedding(x)).flatten(0, 1)


@pytest.fixture
def train(output_dir, write_config):
    """Trains with a warm-up from zero and a cosine; returns the first anomalies."""
    torch.set_num_threads(1)

    def train(model, optimizer, batches, micro_steps=1, steps=STEPS, **changes):
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(step / 10, 0.5 + 0.5 * float(np.cos(np.pi * step / STEPS)))
        )
        config = write_config(**(CONFIG | changes))
        with TrainerMon(str(config), params_have_main_grad=False) as monitor:
            monitor.set_monitor(model, micro_steps, optimizer)
            for _ in range(steps):
                optimizer.zero_grad()
                for _ in range(micro_steps):
                    inputs, targets = next(batches)
                    (F.cross_entropy(model(inputs), targets) / micro_steps).backward()
                optimizer.step()
                schedule.step()
        files = find_anomaly_files(output_dir)
        assert len(files) == 1
        return first_anomalies(files, 100)

    logging.disable(logging.WARNING)
    yield train
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("model", "optimizer", "micro_steps"),
    [
        (Convolutions, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 1),
        (Convolutions, lambda p: torch.optim.AdamW(p, lr=2e-3), 1),
        (Recurrent, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 1),
        (Encoder, lambda p: torch.optim.AdamW(p, lr=2e-3, betas=(0.9, 0.95)), 2),
    ],
    ids=["convolutions SGD", "convolutions AdamW", "LSTM SGD", "encoder AdamW, two micro-steps"],
)
def test_no_alarm(train, model, optimizer, micro_steps):
    torch.manual_seed(3)
    model = model()
    found = train(model, optimizer(model.parameters()), model.batches(np.random.default_rng(3)), micro_steps)
    assert found.seen == 0, json.dumps([record["message"] for record in found.first.values()], indent=1)


def test_a_nan_in_a_batch_is_the_first_anomaly(train):
    """The mask is infinite and the input needs no gradient: neither is reported, and neither hides the NaN."""
    torch.manual_seed(3)

    class FloatEncoder(Encoder):
        def forward(self, x):
            return self.encode(x).flatten(0, 1)

    def batches(generator, bad_step):
        for step in range(5):
            x = torch.from_numpy(generator.normal(size=(4, 6, 16))).float()
            if step == bad_step:
                x[1, 2, 3] = float("nan")
            yield x, torch.from_numpy(generator.integers(0, 40, 24))

    rules = {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 1e6}}, {"rule_name": "AnomalyNan"}]}
    for bad_step, ops in ((None, ["norm", "mean", "min", "max", "std", "infs"]), (2, ["norm"]), (2, ["nans"])):
        model = FloatEncoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run = batches(np.random.default_rng(3), bad_step)
        found = train(model, optimizer, run, steps=5, ops=ops, alert={**rules, "dump": True})
        if bad_step is None:
            assert found.seen == 0, found.first
        else:
            first = next(iter(found.first.values()))
            assert (first["step"], first["rule"]) == (2, "AnomalyNan")
            assert first["tag_name"] == "0:encoder.layers.0.self_attn.input_0:0/rank0/actv"
