"""What msmon costs on a GPU: `python tests/benchmarks/gpu.py`. Says so and ends with 0 where there is none.

The limit of the kernels is the measured bandwidth of a copy: no statistic can be had in less time than it takes to read
the tensor. Then: a GPT of 350 million parameters in bf16 with each monitor, a training whose step is captured in a
graph, and gradients that a side stream makes.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from msmon import TrainerMon
from msmon_stats import partial, partial_many
from msmon_stats.torch import PartialBuffer, chosen_kernels

MILLION = 2**20


def milliseconds(function: Callable[[], object], rounds: int = 15) -> float:
    """Median time on the device."""
    function()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def kernels() -> None:
    """The statistics against a copy's bandwidth."""
    large = torch.randn(64 * MILLION, device="cuda")
    half = large.bfloat16()
    target = torch.empty_like(large)
    small = [torch.randn(1000, device="cuda") for _ in range(2000)]
    activation = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    buffer, rows = PartialBuffer(), PartialBuffer(kernel="float32")

    def measure(into: PartialBuffer, tensors: list[torch.Tensor]) -> None:
        into.measure(tensors, 1e-8)
        into.transfer()

    for tensor in (large, half, activation):
        for kernel, allowed in ((None, 1e-9), ("float32", 1e-6)):
            expected = partial(tensor, kernel="operators")
            torch.testing.assert_close(partial(tensor, kernel=kernel), expected, rtol=allowed, atol=1e6 * allowed)
    copy, total = milliseconds(lambda: target.copy_(large)), milliseconds(large.sum)
    norms = milliseconds(lambda: torch._foreach_norm(small))
    bandwidth = 2 * large.nbytes / copy / 1e6
    # A copy reads and writes: reading alone takes half of it.
    limit = copy / 2 / total
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth:.0f} GB/s, {chosen_kernels()}")
    print(f"{'what':58} {'msmon':>8} {'limit':>8}  target")
    cases: list[tuple[str, Callable[[], object], float, float, str]] = [
        ("six statistics, fp32 64 M elements / fp32 sum", lambda: partial(large), total, limit, "3 (aim 2)"),
        ("six statistics, bf16 64 M elements / fp32 sum", lambda: partial(half), total, limit / 2, "3"),
        ("float32 rows, fp32 64 M elements / fp32 sum", lambda: measure(rows, [large]), total, limit, "3"),
        ("2,000 tensors of 1,000 elements / torch._foreach_norm", lambda: partial_many(small), norms, 1, "3"),
        ("the same by PartialBuffer, transfer included", lambda: measure(buffer, small), norms, 1, "3"),
        ("one bf16 activation / its sum", lambda: partial(activation), milliseconds(activation.sum), 1, ""),
    ]
    for what, function, base, least, wanted in cases:
        print(f"{what:58} {milliseconds(function) / base:8.2f} {least:8.2f}  {wanted}")


class Training:
    """A GPT of 350 million parameters in bf16: 24 layers of width 1024, 4,096 tokens a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
        self.model = nn.Sequential(
            nn.Embedding(50_000, 1024), nn.TransformerEncoder(layer, 24, enable_nested_tensor=False), nn.LayerNorm(1024)
        ).to("cuda", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.ids = torch.randint(50_000, (4, 1024), device="cuda")

    def step(self) -> None:
        """One step."""
        self.model(self.ids).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


MONITORS: dict[str, dict[str, object]] = {
    "wg_distribution": {"wg_distribution": True},
    "param_distribution": {"param_distribution": True},
    "mv_distribution": {"mv_distribution": True},
    "xy_distribution": {"xy_distribution": True, "all_xy": True},
}
MONITORS["all four"] = {name: True for fields in MONITORS.values() for name in fields}


def monitored(training: Training, fields: dict[str, object], run: Callable[[TrainerMon], float]) -> float:
    """Run with a monitor in place; its files go with a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"format": "csv", **fields}))
        with TrainerMon(config, params_have_main_grad=False) as monitor:
            monitor.set_monitor(training.model, grad_acc_steps=1, optimizer=training.optimizer)
            return run(monitor)


def steps() -> None:
    """The time of a step with each monitor over that without, measured in turn."""
    training = Training()
    for _ in range(3):
        training.step()
    print(f"{'a step of a GPT of 350 M in bf16 with':58} {'over without':>12}  target")
    for name, fields in MONITORS.items():
        ratios = []
        for _ in range(5):
            without = milliseconds(training.step, 5)
            ratios.append(monitored(training, fields, lambda _: milliseconds(training.step, 5)) / without)
        print(f"{name:58} {statistics.median(ratios):12.3f}  {1.01 if name == 'wg_distribution' else 1.05}")


def capture() -> None:
    """A step that is captured while a monitor is in place: the graph is that of the training alone."""
    training = Training()
    # What captures is warmed up on a side stream.
    side = torch.cuda.Stream()

    def captured(_: TrainerMon | None = None) -> float:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            training.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            training.model(training.ids).float().square().mean().backward()
        return milliseconds(graph.replay)

    alone = captured()
    ratio = monitored(training, MONITORS["all four"], captured) / alone
    print(f"{'replay of a graph captured under a monitor, over alone':58} {ratio:12.3f}  1.00")


def side_streams() -> None:
    """Rows that a side stream writes arrive, and are right."""
    buffer, side = PartialBuffer(), torch.cuda.Stream()
    for _ in range(20):
        values = torch.randn(MILLION, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product = values
            for _ in range(50):
                product = product * 1.001
            buffer.measure([product], 1e-8)
        buffer.measure([values], 1e-8)
        found = buffer.transfer().matrix()
        torch.cuda.synchronize()
        for row, tensor in zip(found, (product, values), strict=True):
            torch.testing.assert_close(torch.from_numpy(row), partial(tensor).cpu(), rtol=1e-6, atol=1e-2)
    print(f"{'rows of side streams':58} {'right':>12}")


def main() -> int:
    """All of it."""
    if not torch.cuda.is_available():
        print("no GPU: nothing to measure")
        return 0
    for part in (kernels, steps, capture, side_streams):
        part()
    return 0


if __name__ == "__main__":
    sys.exit(main())
