"""Runs the bench: two processes train every case, first each for itself, then together as two ranks."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .faults import FAULTS, GPT_ONLY, RANKS_ONLY
from .models import MODELS
from .scoring import Verdict, judge, report
from .training import Case, train_all

ROOT = Path(__file__).parents[3]
RANKS = 2


def cases_of(seeds: Sequence[int], world: int) -> list[Case]:
    """Every fault on every model that can have it."""
    return [
        Case(model, fault, seed)
        for seed in seeds
        for model in MODELS
        for fault in sorted(FAULTS)
        if (model == "gpt" or fault not in GPT_ONLY) and (world > 1 or fault not in RANKS_ONLY)
    ]


def healthy_cases(seeds: Sequence[int]) -> list[Case]:
    return [Case(model, "", seed) for seed in seeds for model in MODELS]


def run(seeds: Sequence[int], healthy_seeds: Sequence[int], out: Path) -> list[Verdict]:
    """Trains all cases in two processes and judges them."""
    arguments = [",".join(map(str, seeds)), ",".join(map(str, healthy_seeds)), str(out)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # DDP warns when it looks for unused parameters and finds none
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.alert.faults.bench", "--worker", str(rank), *arguments],
            cwd=ROOT,
            env=environment,
        )
        for rank in range(RANKS)
    ]
    try:
        statuses = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(statuses):
        raise RuntimeError(f"the training processes ended with {statuses}")
    return [
        judge(case, world, out / str(world))
        for world in (1, RANKS)
        for case in cases_of(seeds, world) + healthy_cases(healthy_seeds)
    ]


def _work(rank: int, seeds: Sequence[int], healthy_seeds: Sequence[int], out: Path) -> None:
    logging.disable(logging.WARNING)  # every fault is an alert, and every alert a line
    alone = cases_of(seeds, 1) + healthy_cases(healthy_seeds)
    train_all(alone[rank::RANKS], out / "1")
    together = cases_of(seeds, RANKS) + healthy_cases(healthy_seeds)
    train_all(together, out / str(RANKS), rank, RANKS, out / "rendezvous")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(3), help="seeds for each fault and model (default: 0-2)")
    parser.add_argument("--healthy", type=_range, default=range(5), help="seeds of the healthy runs (default: 0-4)")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rank, seeds, healthy_seeds, out = options.worker
        _work(int(rank), _numbers(seeds), _numbers(healthy_seeds), Path(out))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        verdicts = run(options.seeds, options.healthy, Path(folder))
    print(report(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
