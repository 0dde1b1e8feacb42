"""DistributedDataParallel on each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .prove import Trained, plain_step, prove
from .workload import batch, loss_of, make_model, make_optimizer


def _no_sync_step(model: DistributedDataParallel, optimizer: Any, rank: int, acc: int) -> Callable[[int], float]:
    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(acc):
            last = micro_step == acc - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_of(model(batch(number, rank, micro_step))) / acc
                loss.backward()
                total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def build(
    *,
    grad_acc_steps: int = 1,
    announced: int | None = None,
    comm_hook: bool = False,
    dp_group: bool = False,
    inner: bool = False,
    **arguments: Any,
) -> Trained:
    """One training. ``announced``: another number of micro-steps than there are; ``inner``: the monitor gets the
    module inside of the wrapper."""
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(make_model(), **arguments)
    if comm_hook:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = make_optimizer(model.parameters())
    if grad_acc_steps > 1:
        step = _no_sync_step(model, optimizer, rank, grad_acc_steps)
    else:
        step = plain_step(model, optimizer, rank=rank)
    return Trained(
        model=model.module if inner else model,
        optimizer=optimizer,
        step=step,
        grad_acc_steps=announced or grad_acc_steps,
        groups={"dp_group": torch.distributed.group.WORLD} if dp_group else {},
    )


def build_by_hand() -> Trained:
    """No engine: the script reduces the gradients itself, in place."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = make_model()
    optimizer = make_optimizer(model.parameters())

    def step(number: int) -> float:
        loss = loss_of(model(batch(number, rank))) / world_size
        loss.backward()
        for parameter in model.parameters():
            # Alone it leaves autograd's version counter as it was.
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Trained(model=model, optimizer=optimizer, step=step)


def proof_by_hand(*, output: str) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(build_by_hand, output=output)


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))


def metrics_in_the_middle(*, output: str) -> dict[str, Any]:
    """What the API says between backward and step, with what torch itself says."""
    from pathlib import Path

    from .prove import make_monitor

    trained = build(dp_group=False)
    model = trained.model
    monitor = make_monitor(trained, Path(output), format="api", xy_distribution=True)
    trained.step(0)
    own: dict[str, float] = {}
    rank = torch.distributed.get_rank()
    for name, parameter in model.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: own.update({name: p.grad.norm().item()}))
    model(batch(1, rank)).float().pow(2).mean().backward()
    reduced, unreduced = monitor.generate_wgrad_metrics()
    actv, actv_grad = monitor.generate_xy_metrics()
    answer = {
        "reduced": {tag: row["norm"] for tag, row in reduced.items()},
        "unreduced": {tag: row["norm"] for tag, row in unreduced.items()},
        "actv": sorted(actv),
        "actv_grad": sorted(actv_grad),
        "expected_reduced": {name: p.grad.norm().item() for name, p in model.module.named_parameters()},
        "expected_unreduced": own,
    }
    trained.optimizer.step()
    monitor.close()
    return answer


def pipeline_stages(*, output: str) -> None:
    """All ranks are stages of one pipeline, and every number is odd."""
    from pathlib import Path

    from msmon.pytorch import TrainerMon

    from .prove import write_config

    alert = {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1e-12}}], "dump": True}
    trained = build()
    with TrainerMon(write_config(Path(output), alert=alert), torch.distributed.group.WORLD) as monitor:
        monitor.set_monitor(trained.model, 1, trained.optimizer)
        trained.step(0)
    torch.distributed.barrier()


def layouts() -> dict[str, Any]:
    """Communication hook -> what the engine says of who shares a parameter."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook

    from msmon_hooks.torch.grads.detect import find_source

    found = {}
    for hook in (
        None,
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        powerSGD_hook.powerSGD_hook,
        post_localSGD_hook.post_localSGD_hook,
    ):
        model = DistributedDataParallel(make_model())
        if hook is not None:
            model.register_comm_hook(None, hook)
        source = find_source([model], make_optimizer(model.parameters()), main_grad=False)
        found["" if hook is None else hook.__name__] = source.describe(source.weights()[0]).get("layout")
    return found
