"""Step time of a MindSpore training with the monitor over that without it, as ratios within one run.

``make bench ARGS="-k mindspore"`` prints the table. The model is that of ``overhead.py``, which measures PyTorch.
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
VOCABULARY, CONTEXT, BATCH, HEADS = 8192, 256, 2, 8


class Block(nn.Cell):
    """Causal attention, and a feed-forward part."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.proj = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.act, self.down = nn.Dense(width, 4 * width), nn.GELU(), nn.Dense(4 * width, width)
        self.mask = Tensor(np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1))

    def construct(self, x):
        batch, context, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, context, 3, HEADS, width // HEADS)
        q, k, v = parts.transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(width // HEADS) + self.mask
        heads = ops.matmul(ops.softmax(scores, -1), v)
        x = x + self.proj(heads.transpose(0, 2, 1, 3).reshape(batch, context, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class GPT(nn.Cell):
    """27.4 M parameters with 6 layers of width 512."""

    def __init__(self, layers, width):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.SequentialCell(*[Block(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, VOCABULARY, has_bias=False)
        self.places = Tensor(np.arange(CONTEXT), mindspore.int32)

    def construct(self, tokens):
        x = self.token(tokens) + self.position(self.places)
        return self.head(self.norm(self.layers(x)))


def step_ratio(config, pairs, layers, width):
    """Every other step is recorded. Which of them is, the even or the odd ones, changes half way through; and a
    recorded step lasts until everything of it is written."""
    tokens = Tensor(np.random.RandomState(0).randint(0, VOCABULARY, (BATCH, CONTEXT)), mindspore.int32)
    model = GPT(layers, width)
    optimizer = nn.Adam(model.trainable_params(), 1e-4)
    grad = mindspore.value_and_grad(
        lambda: ops.cross_entropy(model(tokens).reshape(-1, VOCABULARY), tokens.reshape(-1)), None, optimizer.parameters
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
    pairs, layers, width = (1, 1, 32) if benchmark.disabled else (12, 6, 512)
    ratio = benchmark.pedantic(step_ratio, (config, pairs, layers, width), rounds=1)
    benchmark.extra_info["ratio"] = ratio
    assert len(list((tmp_path / "out").glob("*/*_0-0.csv"))) >= 1
    with capsys.disabled():
        if not benchmark.disabled:
            print(f"\nMindSpore, step with {case} / step without: {ratio:.3f}")
