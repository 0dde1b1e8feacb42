"""One rank of a data-parallel MindSpore training; msrun starts two. Arguments: folder for results."""

import json
import os
import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
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


def train(name: str, config: dict, *, micro_steps: int = 1, monitored: bool = True, **groups: object) -> list[str]:
    """Two steps on data of this rank; the files lie in a folder of this name. Returns the losses, bit by bit."""
    os.environ["MONITOR_OUTPUT_DIR"] = str(FOLDER / name)
    path = FOLDER / f"{name}-{RANK}.json"
    path.write_text(json.dumps({"ops": ["norm", "mean", "nans"], **config}))
    model = network()
    optimizer = nn.Adam(model.trainable_params(), 1e-2)
    reducer = nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=2)
    monitor = TrainerMon(path) if monitored else None
    if monitor is not None:
        monitor.set_monitor(model, micro_steps, optimizer, **groups)
    grad = mindspore.value_and_grad(lambda x: model(x).pow(2).mean(), None, optimizer.parameters)
    data = np.random.RandomState(RANK)
    losses = []
    for _ in range(2):
        total = None
        for _ in range(micro_steps):
            loss, gradients = grad(Tensor(data.randn(5, 4).astype(np.float32)))
            total = gradients if total is None else tuple(a + b for a, b in zip(total, gradients, strict=True))
            losses.append(loss.asnumpy().tobytes().hex())
        optimizer(reducer(total))
    if monitor is not None:
        monitor.close()
    return losses


def main() -> None:
    results: dict[str, object] = {}
    gradients = {"wg_distribution": True, "xy_distribution": True}
    results["plain"] = train("plain", gradients, monitored=False)
    results["monitored"] = train("monitored", gradients)
    results["accumulated"] = train("accumulated", {"wg_distribution": True}, micro_steps=2)
    results["micro"] = train("micro", {"wg_distribution": True, "monitor_mbs_grad": True}, micro_steps=2)
    train("grouped", {"wg_distribution": True}, dp_group=WORLD)
    train("one_rank", {"wg_distribution": True, "module_ranks": [1]})
    (FOLDER / f"results-{RANK}.json").write_text(json.dumps(results))


main()
