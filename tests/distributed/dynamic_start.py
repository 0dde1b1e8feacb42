"""A training whose configuration file is edited while it runs, on each rank."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from msmon.pytorch import TrainerMon

from .prove import CONFIG, Trained, _fingerprint, hooks_on, make_monitor, plain_step
from .workload import make_model, make_optimizer

STEPS = 12
EDITS: dict[int, dict[str, Any]] = {
    2: {"dynamic_on": True},
    5: {"dynamic_on": False},
    7: {"dynamic_on": True, "ops": ["max", "norm"], "step_interval": 2, "collect_times": 2},
}
"""Before which step rank 0 writes what into the file. Of two ranks each hears of it after that step, for the one after
the next."""
COLLECTED = [[4, 5, 6], [9, 11]]


def build_compiled() -> Trained:
    """DistributedDataParallel under ``torch.compile``."""
    torch._dynamo.reset()
    model = torch.nn.parallel.DistributedDataParallel(make_model())
    optimizer = make_optimizer(model.parameters())
    run = torch.compile(model, backend="aot_eager")
    return Trained(model=run, optimizer=optimizer, step=plain_step(run, optimizer, rank=torch.distributed.get_rank()))


def started_later(*, engine: str, output: str, **variant: Any) -> dict[str, Any]:
    """Train alone, with a monitor from the first step on, and with one that is started, stopped and started again.

    Args:
        engine: a module of this folder, with a function ``build``; or "compiled".
        output: folder for the files: ``static`` and ``dynamic``.
        variant: of the training.
    """
    build = build_compiled if engine == "compiled" else _builder(engine)
    bare = build(**variant)
    alone = [bare.step(number).hex() for number in range(STEPS)]
    answer: dict[str, Any] = {"losses": alone, "weights": _fingerprint(bare), "hooks_without": hooks_on(bare)}
    del bare

    static = build(**variant)
    monitor = make_monitor(static, Path(output) / "static")
    for number in range(STEPS):
        static.step(number)
    monitor.close()
    del static

    watched = build(**variant)
    os.environ["DYNAMIC_MONITOR"] = "True"
    os.environ["MONITOR_OUTPUT_DIR"] = str(Path(output) / "dynamic")
    try:
        answer |= _train_with_edits(watched, Path(output) / "config.json")
    finally:
        del os.environ["DYNAMIC_MONITOR"]
    return answer


def _train_with_edits(trained: Trained, path: Path) -> dict[str, Any]:
    rank = torch.distributed.get_rank()
    if rank == 0:
        _write(path, {**CONFIG, "dynamic_on": False})
    torch.distributed.barrier()
    monitor = TrainerMon(path)
    monitor.set_monitor(trained.model, trained.grad_acc_steps, trained.optimizer, **trained.groups)
    losses, hooks = [], [hooks_on(trained)]
    for number in range(STEPS):
        if number in EDITS and rank == 0:
            _write(path, {**CONFIG, **EDITS[number]})
        losses.append(trained.step(number).hex())
        hooks.append(hooks_on(trained))
    fingerprint = _fingerprint(trained)
    monitor.close()
    torch.distributed.barrier()
    return {
        "losses_dynamic": losses,
        "weights_dynamic": fingerprint,
        "hooks": hooks,
        "hooks_after": hooks_on(trained),
        "left_beside": sorted(one.name for one in path.parent.iterdir()),
    }


def _write(path: Path, config: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(config))
    os.replace(temporary, path)


def _builder(module: str) -> Any:
    return importlib.import_module(f".{module}", __package__).build
