"""MsmonCallback in MindSpore's `Model.train`."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import Callback, Model

from msmon.config import ConfigError
from msmon.integrations.mindspore import MsmonCallback

BATCHES = 3
NAMES = {"0.weight", "0.bias", "2.weight", "2.bias"}


class Raising(Callback):
    def on_train_step_end(self, run_context: object) -> None:
        raise ZeroDivisionError


def data() -> GeneratorDataset:
    rows = [(np.full(4, number, np.float32), np.ones(1, np.float32)) for number in range(2 * BATCHES)]
    return GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(2)


def model(train_cell: bool = False) -> Model:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(0)
    network = nn.SequentialCell(nn.Dense(4, 3), nn.Tanh(), nn.Dense(3, 1))
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    if train_cell:
        return Model(nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer))
    return Model(network, loss_fn=nn.MSELoss(), optimizer=optimizer, metrics={"mse"})


def weights(one: Model) -> list[bytes]:
    return [parameter.asnumpy().tobytes() for parameter in one.train_network.get_parameters()]


def steps(output_dir: Path) -> list[set[int]]:
    """Of each run, in the order in which they were made."""
    found = []
    for run_dir in sorted(output_dir.glob("*-rank0-*"), key=lambda path: (path / "run.json").stat().st_mtime_ns):
        rows: set[int] = set()
        for path in run_dir.glob("grad_reduced_*.csv"):
            with path.open() as file:
                rows |= {int(row["step"]) for row in csv.DictReader(file) if row["name"] in NAMES}
        found.append(rows)
    return found


def test_trainings_one_after_the_other(output_dir: Path) -> None:
    """With evaluation between the epochs, a second call, a resumed one, and one that fails; bit-equal weights."""
    plain, watched = model(), model()
    callback = MsmonCallback(watch="wg,xy")
    plain.fit(2, data(), data(), dataset_sink_mode=False)
    watched.fit(2, data(), data(), callbacks=[callback], dataset_sink_mode=False)
    assert weights(plain) == weights(watched)
    assert callback.monitor is not None
    assert not callback.monitor.is_watching
    watched.train(3, data(), initial_epoch=2, callbacks=[callback], dataset_sink_mode=False)
    with pytest.raises(ZeroDivisionError):
        watched.train(1, data(), callbacks=[callback, Raising()], dataset_sink_mode=False)
    assert not callback.monitor.is_watching
    assert steps(output_dir) == [set(range(6)), set(range(6, 9)), {0}]


def test_a_cell_that_trains(output_dir: Path) -> None:
    """The optimizer is in the network, and not given to `Model`."""
    model(train_cell=True).train(1, data(), callbacks=MsmonCallback(watch="wg"), dataset_sink_mode=False)
    (found,) = output_dir.glob("*-rank0-*/grad_reduced_0-0.csv")
    with found.open() as file:
        assert len(list(csv.DictReader(file))) == len(NAMES)


def test_wrong_configuration(write_config: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="wg_distrib"):
        MsmonCallback(config={"wg_distribution": 3})
