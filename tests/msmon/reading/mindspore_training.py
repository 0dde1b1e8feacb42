"""Train the small network of `twin.py`'s data under MindSpore: python mindspore_training.py DATA.npz OUTPUT SCALE

Runs in the environment with MindSpore. SCALE multiplies the output of `fc2` from step 2 on; 1 changes nothing.
"""

import json
import os
import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops


class Network(nn.Cell):
    """fc1, LayerNorm, GELU, fc2, as in the PyTorch twin."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(4, 8)
        self.norm = nn.LayerNorm((8,), epsilon=1e-5)
        self.fc2 = nn.Dense(8, 3)
        self.scale = 1.0

    def construct(self, x: Tensor) -> Tensor:
        return self.fc2(ops.gelu(self.norm(self.fc1(x)), approximate="none") * self.scale)


def main(data: Path, output: Path, scale: float) -> None:
    from msmon.mindspore import TrainerMon

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    arrays = np.load(data)
    network = Network()
    names = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(arrays[names.get(parameter.name, parameter.name)]))
    optimizer = nn.SGD(network.trainable_params(), learning_rate=0.1)
    os.environ["MONITOR_OUTPUT_DIR"] = str(output)
    config = output.parent / f"{output.name}.json"
    config.write_text(json.dumps(json.loads(str(arrays["config"]))))
    monitor = TrainerMon(str(config))
    monitor.set_monitor(network, grad_acc_steps=1, optimizer=optimizer)
    gradient = mindspore.value_and_grad(lambda x: ops.square(network(x)).mean(), None, optimizer.parameters)
    for step, batch in enumerate(arrays["batches"]):
        network.scale = scale if step >= 2 else 1.0
        _, gradients = gradient(Tensor(batch))
        optimizer(gradients)
    monitor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
