"""Steps of a compiled GPT without a monitor and with one that looks inside, alternating in one process.

    python -m tests.benchmarks.compiled float32|bfloat16 [--steps 30] [--width 256] [--layers 4]

Prints as JSON the medians of the ratios of neighbouring steps: `unsampled` and `sampled` for `stored` and `all`, by the
clock on the wall, and by the time that the training's thread has had a processor (`cpu`), which other programs disturb
less and which leaves out what the background thread does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from msmon.pytorch import TrainerMon
from tests.benchmarks.overhead import CONTEXT, GPT, OPS, VOCABULARY


class Training:
    """One model with its own compiled code. Dynamo keeps code by class: each has one of its own."""

    def __init__(self, dtype: torch.dtype, layers: int, width: int, inside: Any, tokens: int) -> None:
        cls = type(f"GPT_{inside}", (GPT,), {})
        torch.manual_seed(0)
        self.model = cls(layers, width).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.monitor = None
        if inside:
            config = Path(tempfile.mkdtemp()) / "config.json"
            fields = {"ops": OPS, "xy_distribution": True, "inside_compiled": inside, "step_interval": 2}
            config.write_text(json.dumps(fields))
            self.monitor = TrainerMon(config, params_have_main_grad=False)
            self.monitor.set_monitor(self.model, 1, self.optimizer)
        self.run = torch.compile(self.model, fullgraph=True)
        self.batch = torch.randint(0, VOCABULARY, (max(1, tokens // CONTEXT), CONTEXT))

    def step(self) -> tuple[float, float]:
        """Seconds of a step: by the clock, and of the processor."""
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        F.cross_entropy(self.run(self.batch).float().flatten(0, 1), self.batch.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin, time.thread_time() - begin_cpu


def measure(dtype: str, *, steps: int, layers: int, width: int, tokens: int = 512) -> dict[str, float]:
    """The ratios; even steps of the monitored training are sampled, odd ones are not."""
    # With several, the kernels' threads wait for one another, and for whatever else the machine does.
    torch.set_num_threads(1)
    found = {}
    for inside in ("stored", True):
        torch._dynamo.reset()
        plain, seen = (Training(getattr(torch, dtype), layers, width, value, tokens) for value in (None, inside))
        ratios: dict[str, list[float]] = defaultdict(list)
        for number in range(steps):
            first, second = (plain, seen) if number // 2 % 2 else (seen, plain)
            times = {id(one): one.step() for one in (first, second)}
            if number >= 4:
                kind = "unsampled" if number % 2 else "sampled"
                for clock, with_, without in zip(("", " cpu"), times[id(seen)], times[id(plain)], strict=True):
                    ratios[kind + clock].append(with_ / without)
        assert seen.monitor is not None
        seen.monitor.close()
        name = "stored" if inside == "stored" else "all"
        found |= {f"{name} {kind}": statistics.median(values) for kind, values in ratios.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=44)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    os.environ.setdefault("MONITOR_OUTPUT_DIR", tempfile.mkdtemp())
    print(json.dumps(measure(arguments.dtype, steps=arguments.steps, layers=arguments.layers, width=arguments.width)))


if __name__ == "__main__":
    main()
