"""One rank of a data-parallel MindSpore training; msrun starts two. Arguments: folder for results."""

import json
import os
import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import get_rank, init

from msmon.mindspore import TrainerMon

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.set_device("CPU")
init("mccl")
RANK = get_rank()
FOLDER = Path(sys.argv[1])
WORLD = "mccl_world_group"


def network() -> nn.Cell:
    """The same on every rank."""
    mindspore.set_seed(3)
    return nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2))


def train(
    name: str, config: dict, *, micro_steps: int = 1, monitored: bool = True, several: bool = False, **groups: object
) -> list[str]:
    """Two steps on data of this rank; the files lie in a folder of this name. Returns the losses, bit by bit.

    With `several`, each layer has an optimizer and a reducer of its own.
    """
    os.environ["MONITOR_OUTPUT_DIR"] = str(FOLDER / name)
    path = FOLDER / f"{name}-{RANK}.json"
    path.write_text(json.dumps({"ops": ["norm", "mean", "nans"], **config}))
    model = network()
    layers = [model[0], model[2]] if several else [model]
    optimizers = [nn.Adam(layer.trainable_params(), 1e-2) for layer in layers]
    reducers = [nn.DistributedGradReducer(one.parameters, mean=True, degree=2) for one in optimizers]
    monitor = TrainerMon(path) if monitored else None
    if monitor is not None:
        monitor.set_monitor(model, micro_steps, optimizers if several else optimizers[0], **groups)
    grad = mindspore.value_and_grad(lambda x: model(x).pow(2).mean(), None, model.trainable_params())
    data = np.random.RandomState(RANK)
    losses = []
    for _ in range(2):
        total = None
        for _ in range(micro_steps):
            loss, gradients = grad(Tensor(data.randn(5, 4).astype(np.float32)))
            total = gradients if total is None else tuple(a + b for a, b in zip(total, gradients, strict=True))
            losses.append(loss.asnumpy().tobytes().hex())
        coming = iter(total)
        for optimizer, reducer in zip(optimizers, reducers, strict=True):
            optimizer(reducer(tuple(next(coming) for _ in optimizer.parameters)))
    if monitor is not None:
        monitor.close()
    return losses


def collectives() -> None:
    """Two steps in which every rank sends a constant of its own, by an operator and in place."""
    os.environ["MONITOR_OUTPUT_DIR"] = str(FOLDER / "collectives")
    path = FOLDER / f"collectives-{RANK}.json"
    path.write_text(json.dumps({"ops": ["mean", "nans"], "cc_distribution": {"enable": True, "cc_pre_hook": True}}))
    model = network()
    optimizer = nn.Adam(model.trainable_params(), 1e-2)
    operator = ops.AllReduce()
    with TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        grad = mindspore.value_and_grad(lambda x: model(x).sum(), None, optimizer.parameters)
        for _ in range(2):
            _, gradients = grad(Tensor(np.ones((1, 4), np.float32)))
            own = Tensor(np.full(3, RANK + 1, np.float32))
            assert operator(own).asnumpy().tolist() == [3.0] * 3
            mint.distributed.all_reduce(own)
            assert own.asnumpy().tolist() == [3.0] * 3
            optimizer(gradients)


def main() -> None:
    collectives()
    results: dict[str, object] = {}
    gradients = {"wg_distribution": True, "xy_distribution": True}
    results["plain"] = train("plain", gradients, monitored=False)
    results["monitored"] = train("monitored", gradients)
    results["accumulated"] = train("accumulated", {"wg_distribution": True}, micro_steps=2)
    train("several", {"wg_distribution": True}, micro_steps=2, several=True)
    results["micro"] = train("micro", {"wg_distribution": True, "monitor_mbs_grad": True}, micro_steps=2)
    train("grouped", {"wg_distribution": True}, dp_group=WORLD)
    train("one_rank", {"wg_distribution": True, "module_ranks": [1]})
    (FOLDER / f"results-{RANK}.json").write_text(json.dumps(results))


main()
