"""A small MindSpore network, watched while it trains.

python examples/mindspore_mlp.py
"""

from __future__ import annotations

import os
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn

from msmon.mindspore import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")


def main() -> None:
    """Eight steps in dynamic mode."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_device("CPU")
    mindspore.set_seed(0)
    network = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 1))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    loss_and_gradients = mindspore.value_and_grad(lambda x: network(x).pow(2).mean(), None, optimizer.parameters)
    data = np.random.default_rng(0)
    with TrainerMon(CONFIG) as monitor:
        monitor.set_monitor(network, grad_acc_steps=1, optimizer=optimizer)
        for _ in range(8):
            _, gradients = loss_and_gradients(Tensor(data.standard_normal((8, 16), np.float32)))
            optimizer(gradients)
    print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))


if __name__ == "__main__":
    main()
