"""Train a small GPT under a monitor and say what share of its steps the monitor takes.

    python -m tests.benchmarks.overhead TASK [--steps 30] [--width 512] [--layers 6]

Two processes, or odd and even steps, differ by more than a monitor costs. So the time inside the monitor's callbacks is
measured instead: everything that it registers with torch is wrapped in a timer before it is registered, and the time of
``close()`` is spread over the steps. What the background thread takes from the training is in neither figure, but is
in the step time, which is printed too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

TASKS: dict[str, dict[str, bool]] = {
    "none": {},
    "wg": {"wg_distribution": True},
    "param": {"param_distribution": True},
    "mv": {"mv_distribution": True},
    "xy": {"xy_distribution": True, "all_xy": True},
}
TASKS["all"] = {name: True for task in list(TASKS.values()) for name in task}
OPS = ["min", "max", "mean", "norm", "zeros", "nans"]
VOCABULARY, CONTEXT = 8192, 256


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time_, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class CallbackTimer:
    """Wraps every callback that is registered with torch from now on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False
        self._wrap(nn.Module, "register_forward_hook", "register_forward_pre_hook")
        self._wrap(torch.Tensor, "register_hook", "register_post_accumulate_grad_hook")
        self._wrap(torch.optim.Optimizer, "register_step_pre_hook", "register_step_post_hook")

    def _wrap(self, owner: type, *names: str) -> None:
        for name in names:
            original = getattr(owner, name)

            def register(target: Any, hook: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                return _original(target, self._timed(hook), *args, **kwargs)

            setattr(owner, name, register)

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook, updated=())
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return hook(*args, **kwargs)
            self._inside = True
            begin = time.perf_counter()
            try:
                return hook(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin
                self._inside = False

        return timed


def resident_mb() -> float:
    """Resident memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure(task: str, *, steps: int, layers: int, width: int, tokens: int = 512) -> dict[str, float]:
    """Train and measure.

    Returns:
        ``ratio`` (1 + share of the callbacks + share of ``close()``; the median over the steps), ``step_s`` (median
        seconds of a step without the callbacks), ``whole_step_s`` (with them), ``early_mb`` and ``late_mb`` (resident
        memory, the median over the second and over the last third of the steps: the heap of one moment varies by the
        size of a large tensor).
    """
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = GPT(layers, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timer = CallbackTimer()
    monitor = None
    if task != "none":
        from msmon.pytorch import TrainerMon

        directory = Path(tempfile.mkdtemp())
        os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
        config = directory / "config.json"
        config.write_text(json.dumps({"ops": OPS, **TASKS[task]}))
        monitor = TrainerMon(config, params_have_main_grad=False)
        monitor.set_monitor(model, 1, optimizer)
    batch = torch.randint(0, VOCABULARY, (max(1, tokens // CONTEXT), min(tokens, CONTEXT)))
    shares, bare, whole, memory = [], [], [], []
    for _ in range(steps):
        timer.seconds, begin = 0.0, time.perf_counter()
        F.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - begin
        bare.append(seconds - timer.seconds)
        whole.append(seconds)
        shares.append(timer.seconds / bare[-1])
        memory.append(resident_mb())
    begin = time.perf_counter()
    if monitor is not None:
        monitor.close()
    closing = time.perf_counter() - begin
    warm = min(3, steps - 1)
    step = statistics.median(bare[warm:])
    return {
        "ratio": 1 + statistics.median(shares[warm:]) + closing / steps / step,
        "step_s": step,
        "whole_step_s": statistics.median(whole[warm:]),
        "early_mb": statistics.median(memory[steps // 3 : -(steps // 3)]),
        "late_mb": statistics.median(memory[-(steps // 3) :]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.task, steps=arguments.steps, layers=arguments.layers, width=arguments.width)))


if __name__ == "__main__":
    main()
