"""What each rank does for the proof: train alone, with a monitor, with a monitor on one rank, and after it closed."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch import nn

from msmon.pytorch import TrainerMon

from .workload import STEPS, batch, loss_of

ALL_OPS = ["norm", "min", "max", "mean", "zeros", "nans"]
CONFIG: dict[str, Any] = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "ops": ALL_OPS,
    "ndigits": 12,
    "eps": 1e-3,
}


@frozen(kw_only=True)
class Trained:
    """A training on one rank, ready for its first step."""

    model: Any
    """What ``set_monitor`` is given: a module or a list of modules."""
    optimizer: Any
    step: Callable[[int], float]
    """Run one whole step, and return this rank's loss."""
    grad_acc_steps: int = 1
    groups: dict[str, Any] = field(factory=dict)
    """``dp_group`` and ``tp_group`` of ``set_monitor``."""
    process_group: Any = None
    """The pipeline's."""
    weights: Callable[[], Iterable[torch.Tensor]] | None = None
    """What must be bit-equal at the end; default: the model's parameters (local parts)."""
    watched: Sequence[Any] = ()
    """Further objects that may be patched, and must not be afterwards."""


def plain_step(
    model: nn.Module,
    optimizer: Any,
    *,
    rank: int,
    grad_acc_steps: int = 1,
    loss: Callable[[Any], torch.Tensor] = loss_of,
) -> Callable[[int], float]:
    """Forward, backward, step, zero_grad."""

    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(grad_acc_steps):
            value = loss(model(batch(number, rank, micro_step))) / grad_acc_steps
            value.backward()
            total += value.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def prove(build: Callable[[], Trained], *, output: str, steps: int = STEPS, **config: Any) -> dict[str, Any]:
    """Run the training four times on this rank; called on all ranks alike.

    Args:
        build: makes the training anew, with the same weights.
        output: folder for the monitors' files: ``all`` of a monitor on all ranks, ``first`` of one on rank 0 alone.
        steps: optimizer steps of a training.
        config: fields of the configuration that replace those of ``CONFIG``.
    """
    bare = build()
    losses, weights = _train(bare, steps), _fingerprint(bare)
    without = hooks_on(bare)
    del bare

    watched = build()
    monitor = make_monitor(watched, Path(output) / "all", **config)
    with_monitor = _train(watched, steps)
    during = hooks_on(watched)
    with_weights = _fingerprint(watched)
    metrics = monitor.generate_wgrad_metrics()
    monitor.close()
    after = hooks_on(watched)
    torch.distributed.barrier()
    files = _files(output)
    watched.step(steps)
    torch.distributed.barrier()
    files_after = _files(output)
    del watched
    gc.collect()

    partly = build()
    monitor = make_monitor(partly, Path(output) / "first", **{**config, "module_ranks": [0]})
    on_first = _train(partly, steps)
    monitor.close()
    first_weights = _fingerprint(partly)
    torch.distributed.barrier()
    return {
        "losses": losses,
        "losses_with_monitor": with_monitor,
        "losses_with_monitor_on_rank_0": on_first,
        "weights": weights,
        "weights_with_monitor": with_weights,
        "weights_with_monitor_on_rank_0": first_weights,
        "metrics": metrics,
        "hooks_without": without,
        "hooks_during": during,
        "hooks_after": after,
        "written_after_close": sorted(files_after - files),
    }


@frozen(kw_only=True)
class Finished:
    """A training that a trainer ran from beginning to end on this rank."""

    losses: list[float]
    model: Any
    optimizer: Any
    during: dict[str, int]
    """What `hooks_on` counted in the last step."""


def prove_trainer(train: Callable[[Path | None], Finished], *, output: str, **config: Any) -> dict[str, Any]:
    """As `prove`, for a trainer that owns the loop.

    Args:
        train: runs the training anew; given a configuration file, with a callback that monitors it.
    """

    def run(folder: str | None, **fields: Any) -> tuple[list[str], str, Finished]:
        path = None if folder is None else write_config(Path(output) / folder, **fields)
        done = train(path)
        as_trained = Trained(model=done.model, optimizer=done.optimizer, step=lambda number: 0.0)
        return [loss.hex() for loss in done.losses], _fingerprint(as_trained), done

    losses, weights, bare = run(None)
    with_monitor, with_weights, watched = run("all", **config)
    on_first, first_weights, _ = run("first", **{**config, "module_ranks": [0]})
    torch.distributed.barrier()
    after = hooks_on(Trained(model=watched.model, optimizer=watched.optimizer, step=lambda number: 0.0))
    files = _files(output)
    torch.distributed.barrier()
    # Not by the trainer: it has let go of the model.
    plain_step(watched.model, watched.optimizer, rank=0, loss=lambda output: loss_of(_tensor(output)))(STEPS)
    torch.distributed.barrier()
    return {
        "losses": losses,
        "losses_with_monitor": with_monitor,
        "losses_with_monitor_on_rank_0": on_first,
        "weights": weights,
        "weights_with_monitor": with_weights,
        "weights_with_monitor_on_rank_0": first_weights,
        "hooks_without": hooks_on(Trained(model=bare.model, optimizer=bare.optimizer, step=lambda number: 0.0)),
        "hooks_during": watched.during,
        "hooks_after": after,
        "written_after_close": sorted(_files(output) - files),
    }


def _tensor(output: Any) -> torch.Tensor:
    return output["output"] if isinstance(output, dict) else output


def write_config(folder: Path, **config: Any) -> Path:
    """A configuration file of this rank, whose monitor writes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"config{torch.distributed.get_rank()}.json"
    path.write_text(json.dumps({**CONFIG, **config}))
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder)
    return path


def make_monitor(trained: Trained, folder: Path, **config: Any) -> TrainerMon:
    """A monitor of the training that writes into ``folder``."""
    monitor = TrainerMon(write_config(folder, **config), process_group=trained.process_group)
    monitor.set_monitor(
        trained.model, grad_acc_steps=trained.grad_acc_steps, optimizer=trained.optimizer, **trained.groups
    )
    return monitor


def _train(trained: Trained, steps: int) -> list[str]:
    # As hexadecimal: equal means bit-equal.
    return [trained.step(number).hex() for number in range(steps)]


def _fingerprint(trained: Trained) -> str:
    """A digest of all bits of the rank's weights."""
    digest = hashlib.sha256()
    weights = trained.weights or (lambda: [p for model in _models(trained) for p in model.parameters()])
    for weight in weights():
        local = getattr(weight, "_local_tensor", weight).detach().contiguous()
        digest.update(local.flatten().view(torch.uint8).numpy().tobytes() if local.numel() else b"-")
    return digest.hexdigest()


def _models(trained: Trained) -> list[nn.Module]:
    return list(trained.model) if isinstance(trained.model, list) else [trained.model]


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)


def hooks_on(trained: Trained) -> dict[str, int]:
    """How many hooks and replaced methods sit on the objects of the training."""
    objects: list[Any] = [trained.optimizer, *trained.watched]
    for model in _models(trained):
        for module in model.modules():
            objects += [module, *module._parameters.values()]
    counts = dict.fromkeys([*_HOOKS, "methods"], 0)
    for one in objects:
        for name in _HOOKS:
            counts[name] += len(getattr(one, name, None) or ())
        counts["methods"] += sum(
            callable(value) and type(value).__name__ in ("function", "method", "partial", "builtin_function_or_method")
            for value in getattr(one, "__dict__", {}).values()
        )
    return counts


def _files(output: str) -> set[str]:
    return {f"{path}:{path.stat().st_size}" for path in Path(output).rglob("*") if path.is_file()}
