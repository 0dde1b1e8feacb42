"""Step time of a MindSpore training with the monitor over that without it, as ratios within one run.

``make bench ARGS="-k mindspore"`` prints the table.
"""

import json
import math
import statistics
import time

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from msmon.mindspore import TrainerMon

SIX = ["min", "max", "mean", "norm", "zeros", "nans"]
CASES = {
    "wg_distribution": {"wg_distribution": True},
    "xy_distribution": {"xy_distribution": True, "all_xy": True},
}
WIDTH, LAYERS, TOKENS, VOCABULARY = 256, 4, 256, 2048


class Block(nn.Cell):
    """Attention with one head, and a feed-forward part."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.qkv, self.proj = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.fc1, self.act, self.fc2 = nn.Dense(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dense(4 * WIDTH, WIDTH)

    def construct(self, x):
        q, k, v = ops.split(self.qkv(self.norm1(x)), WIDTH, -1)
        weights = ops.softmax(ops.matmul(q, ops.transpose(k, (1, 0))) / math.sqrt(WIDTH), -1)
        x = x + self.proj(ops.matmul(weights, v))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Model(nn.Cell):
    """4 M parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.SequentialCell(*[Block() for _ in range(LAYERS)])
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)

    def construct(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def step_ratio(config, pairs):
    """Every other step is recorded. Which of them is, the even or the odd ones, changes half way through; and a
    recorded step lasts until everything of it is written."""
    tokens = Tensor(np.random.RandomState(0).randint(0, VOCABULARY, TOKENS + 1), mindspore.int32)
    model = Model()
    optimizer = nn.Adam(model.trainable_params(), 1e-4)
    grad = mindspore.value_and_grad(
        lambda: ops.cross_entropy(model(tokens[:-1]), tokens[1:]), None, optimizer.parameters
    )
    ratios = []
    for first in (0, 1):
        config.write_text(json.dumps({**json.loads(config.read_text()), "start_step": first, "step_interval": 2}))
        with TrainerMon(config) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            times = {False: [], True: []}
            for step in range(2 * pairs + 2):
                start = time.perf_counter()
                loss, gradients = grad()
                optimizer(gradients)
                loss.asnumpy()
                optimizer.parameters[0].asnumpy()
                monitor.generate_xy_metrics()
                if step > 1:
                    times[step % 2 == first].append(time.perf_counter() - start)
        ratios.append(statistics.median(times[True]) / statistics.median(times[False]))
    return math.sqrt(ratios[0] * ratios[1])


@pytest.mark.parametrize("case", CASES)
def test_step_time(case, benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CASES[case], "ops": SIX}))
    pairs = 1 if benchmark.disabled else 12
    ratio = benchmark.pedantic(step_ratio, (config, pairs), rounds=1)
    benchmark.extra_info["ratio"] = ratio
    assert len(list((tmp_path / "out").glob("*/*_0-0.csv"))) >= 1
    with capsys.disabled():
        if not benchmark.disabled:
            print(f"\nMindSpore, step with {case} / step without: {ratio:.3f}")
