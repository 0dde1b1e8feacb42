"""Trains every kind of fault, and healthy models, under msmon and reports what the alert rules made of it.

Two processes train, first each for itself, then together as two ranks.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from .faults import FAULTS, GPT_ONLY, RANKS_ONLY
from .models import MODELS
from .scoring import Verdict, judge, line, report
from .training import Case, train

ROOT = Path(__file__).parents[3]
RANKS = 2
LONGEST_WAIT = datetime.timedelta(minutes=5)
"""Between the ranks; one that is gone must not leave the other waiting for ever."""


def faults_of(model: str, world: int) -> list[str]:
    """The faults that a model on so many ranks can have."""
    return [f for f in sorted(FAULTS) if (model == "gpt" or f not in GPT_ONLY) and (world > 1 or f not in RANKS_ONLY)]


def run(seeds: Sequence[int], out: Path, *, lines: bool = False) -> list[Verdict]:
    """Trains everything for these seeds, in two processes. With `lines` each training is printed when it is done."""
    arguments = [",".join(map(str, seeds)), str(out), str(int(lines))]
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
    return finished(out)


def finished(out: Path) -> list[Verdict]:
    """The verdicts on the trainings that are done: alone before together, then by seed and model."""
    texts = [text for path in out.glob("verdicts-*") for text in path.read_text().splitlines()]
    found = [Verdict.from_json(text) for text in texts]
    return sorted(found, key=lambda v: (v.world, v.case.seed, v.case.model, v.case.fault))


def _work(rank: int, seeds: Sequence[int], out: Path, lines: bool) -> None:
    logging.disable(logging.WARNING)  # every fault is an alert, and every alert a line
    torch.set_num_threads(1)
    pairs = list(itertools.product(seeds, enumerate(MODELS)))
    with open(out / f"verdicts-{rank}", "w", buffering=1) as file:

        def note(verdict: Verdict) -> None:
            file.write(verdict.to_json() + "\n")
            if lines:
                print(line(verdict), flush=True)

        for seed, (number, model) in pairs:
            if (seed + number) % RANKS == rank:
                for case in _train_all(model, seed, out / "1", 0, 1):
                    note(judge(case, 1, out / "1"))
        rendezvous = f"file://{out / 'rendezvous'}"
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS, timeout=LONGEST_WAIT)
        for seed, (_, model) in pairs:
            for case in _train_all(model, seed, out / str(RANKS), rank, RANKS):
                dist.barrier()
                if rank == 0:
                    note(judge(case, RANKS, out / str(RANKS)))
        dist.destroy_process_group()


def _train_all(model: str, seed: int, out: Path, rank: int, world: int) -> Iterator[Case]:
    healthy = Case(model, "", seed)
    snapshots = train(healthy, out, rank, world)
    yield healthy
    for fault in faults_of(model, world):
        case = Case(model, fault, seed)
        train(case, out, rank, world, snapshots)
        yield case


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(5), help="seeds of each fault and model (default: 0-4)")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rank, seeds, out, lines = options.worker
        _work(int(rank), json.loads(f"[{seeds}]"), Path(out), lines == "1")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `timeout` does: end the processes, tell what is done
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(options.seeds, Path(folder), lines=True)
        except KeyboardInterrupt:
            print("stopped; what was done up to now:")
        print(f"\n{report(finished(Path(folder)))}\n{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
