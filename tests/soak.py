"""A long training in dynamic mode whose monitor is started and stopped again and again: does anything grow?

``python -m tests.soak`` (``make soak``) prints what it saw at the first and at the last stop, and ends with status 1
if memory, threads, file descriptors, hooks or the time of a step have grown.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from attrs import frozen
from torch import nn

from msmon.pytorch import TrainerMon

CONFIG = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "min", "max", "mean", "nans"],
    "step_count_per_record": 50,
    "format": ["csv", "tensorboard"],
    "alert": {
        "rules": [
            {"rule_name": "AnomalyNan"},
            {"rule_name": "AnomalyTurbulence", "args": {"threshold": 100.0}},
        ],
        "dump": True,
    },
}
WARM_UP = 4
"""Stops before the first one that counts: memory pools fill and modules are imported."""


@frozen(kw_only=True)
class State:
    """What the process held after a number of steps, and the CPU time of the training's thread a step before that."""

    step: int
    memory_mb: float
    threads: int
    descriptors: int
    hooks: int
    objects: int
    step_us: float


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    count = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    for module in model.modules():
        count += len(module._forward_hooks) + len(module._forward_pre_hooks)
    return count + sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters())


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(folder: Path, steps: int, every: int) -> tuple[list[State], list[State]]:
    """Train; returns the states at the stops (nothing is collected for ``every`` steps) and at the starts."""
    os.environ["DYNAMIC_MONITOR"] = "True"
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder / "out")
    path = folder / "config.json"

    def switch(on: bool) -> None:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({**CONFIG, "dynamic_on": on}))
        os.replace(temporary, path)

    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    switch(False)
    states: dict[bool, list[State]] = {False: [], True: []}
    with TrainerMon(path, params_have_main_grad=False) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        collecting = False
        for first in range(0, steps, every):
            times = []
            for _ in range(every):
                begin = time.thread_time()
                loss = model(torch.randn(16, 64)).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                times.append(time.thread_time() - begin)
            # Waits for the writer, which may have a file open at this very moment.
            monitor.generate_xy_metrics()
            gc.collect()
            states[collecting].append(
                State(
                    step=first + every,
                    memory_mb=resident_mb(),
                    threads=threading.active_count(),
                    descriptors=len(os.listdir("/proc/self/fd")),
                    hooks=hooks_of(model, optimizer),
                    objects=len(gc.get_objects()),
                    step_us=1e6 * statistics.median(times),
                )
            )
            collecting = not collecting
            switch(collecting)
    return states[False], states[True]


def grown(states: list[State]) -> list[str]:
    """What the last state has more of than the first that counts."""
    first, last = states[min(WARM_UP, len(states) - 2)], states[-1]
    limits = {"memory_mb": 16, "threads": 0, "descriptors": 0, "hooks": 0, "objects": 2000}
    return [
        f"{name}: {getattr(first, name):g} after {first.step} steps, {getattr(last, name):g} after {last.step}"
        for name, more in limits.items()
        if getattr(last, name) > getattr(first, name) + more
    ]


def slower(states: list[State]) -> list[str]:
    """The time of a step, the median of the first quarter of the states against that of the last."""
    quarter = max(len(states) // 4, 1)
    first, last = (statistics.median(s.step_us for s in part) for part in (states[:quarter], states[-quarter:]))
    return [f"step time: {first:.0f} us at first, {last:.0f} us at last"] if last > 1.3 * first else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--every", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        stops, starts = soak(Path(folder), options.steps, options.every)
        runs = len(list((Path(folder) / "out").glob("*-rank0-*")))
    print(f"{options.steps} steps, started and stopped every {options.every}: {runs} run directories")
    names = ("step", "memory_mb", "threads", "descriptors", "hooks", "objects", "step_us")
    for title, states in (("not collecting", stops), ("collecting", starts)):
        print(f"{title:16}" + "".join(f"{name:>13}" for name in names))
        for label, state in (("first", states[0]), ("after warm-up", states[WARM_UP]), ("last", states[-1])):
            print(f"  {label:14}" + "".join(f"{getattr(state, name):13.5g}" for name in names))
    found = [f"{t}: {line}" for t, s in (("stopped", stops), ("started", starts)) for line in grown(s) + slower(s)]
    print("\n".join(found) or "nothing has grown")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
