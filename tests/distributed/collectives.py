"""Every collective once in a step, on each rank."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.distributed_c10d import all_reduce as known_before

from msmon.pytorch import TrainerMon
from msmon_hooks.torch.collectives import hooks as collective_hooks
from msmon_hooks.torch.collectives import waiting
from msmon_hooks.torch.collectives.calls import COLLECTIVES, FUNCTIONAL
from msmon_hooks.torch.collectives.waiting import waits

GARBAGE = float("nan")


def _filled(value: float, rows: int = 2) -> torch.Tensor:
    return torch.full((rows, 3), float(value))


def _garbage(rows: int = 2) -> torch.Tensor:
    return torch.full((rows, 3), GARBAGE)


def synchronous() -> None:
    """Receive buffers hold NaN before."""
    rank = dist.get_rank()
    dist.all_reduce(_filled(rank + 1))
    dist.broadcast(_filled(7) if rank == 0 else _garbage(), src=0)
    dist.reduce(_filled(rank + 1), dst=1)
    dist.all_gather([_garbage(), _garbage()], _filled(rank + 1))
    dist.all_gather_into_tensor(_garbage(4), _filled(rank + 1))
    dist.gather(_filled(rank + 1), [_garbage(), _garbage()] if rank == 0 else None, dst=0)
    dist.scatter(_garbage(), [_filled(1), _filled(2)] if rank == 0 else None, src=0)
    dist.reduce_scatter(_garbage(), [_filled(1), _filled(rank)])
    dist.reduce_scatter_tensor(_garbage(), _filled(rank + 1, 4))
    dist.all_to_all_single(_garbage(), _filled(rank + 1))
    dist.all_reduce_coalesced([_filled(rank + 1), _filled(10)])
    if rank == 0:
        dist.send(_filled(5), dst=1)
    else:
        dist.recv(_garbage(), src=0)
    dist.all_gather_object([None, None], {"rank": rank})
    dist.barrier()


def asynchronous() -> None:
    """What arrives is there after ``wait``."""
    rank = dist.get_rank()
    dist.all_reduce(_filled(rank + 1), async_op=True).wait()
    peer = 1 - rank
    received = _garbage()
    receiving = dist.irecv(received, src=peer)
    dist.isend(_filled(rank + 1), dst=peer).wait()
    receiving.wait()
    ops = [dist.P2POp(dist.isend, _filled(rank + 1), peer), dist.P2POp(dist.irecv, _garbage(), peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    with _coalescing_manager(async_ops=True) as manager:
        dist.reduce_scatter_tensor(_garbage(), _filled(rank + 1, 4))
        dist.reduce_scatter_tensor(_garbage(), _filled(rank + 3, 4))
    manager.wait()
    with _coalescing_manager():
        dist.all_gather_into_tensor(_garbage(4), _filled(rank + 1))
    # Never waited for: nothing is known of it.
    dist.broadcast(_filled(3), src=0, async_op=True)
    dist.barrier()


def by_function() -> None:
    """Functional collectives, read when they are used."""
    rank = dist.get_rank()
    group = dist.group.WORLD
    total = functional.all_reduce(_filled(rank + 1), "sum", group)
    # A result that goes into the next collective before anybody has used it.
    again = functional.all_reduce(total, "sum", group)
    assert again.sum().item() == 36
    assert functional.all_gather_tensor(_filled(rank + 1), 0, group).sum().item() == 18
    assert functional.reduce_scatter_tensor(_filled(1, 4), "sum", 0, group).sum().item() == 12
    assert functional.broadcast(_filled(rank + 1), 0, group).sum().item() == 6
    one, two = functional.all_reduce_coalesced([_filled(1), _filled(2)], "sum", group)
    assert (one + two).sum().item() == 36
    assert functional.all_to_all_single(_filled(rank + 1), [1, 1], [1, 1], group).sum().item() == 9


STEPS: dict[str, Callable[[], None]] = {
    "synchronous": synchronous,
    "asynchronous": asynchronous,
    "functional": by_function,
}


def _monitor(output: str, model: nn.Module, optimizer: Any, **fields: Any) -> TrainerMon:
    rank = dist.get_rank()
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"config{rank}.json"
    path.write_text(json.dumps({"ops": ["norm", "min", "max", "nans"], "ndigits": 9, **fields}))
    os.environ["MONITOR_OUTPUT_DIR"] = output
    monitor = TrainerMon(path)
    monitor.set_monitor(model, 1, optimizer)
    return monitor


def step(*, output: str, what: str, **cc: Any) -> dict[str, Any]:
    """One training step in which collectives run; returns what else a test wants to know."""
    warnings.simplefilter("ignore")
    functions = {name: getattr(dist.distributed_c10d, name) for name in COLLECTIVES if hasattr(dist, name)}
    functions |= {f"functional.{name}": getattr(functional, name) for name in FUNCTIONAL if hasattr(functional, name)}
    codes = {name: (one.__code__, one.__defaults__) for name, one in functions.items()}
    wait = vars(dist.Work)["wait"]
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = _monitor(output, model, optimizer, cc_distribution={"enable": True, **cc})
    intercepted = [name for name, one in functions.items() if one.__code__ is not codes[name][0]]
    model(torch.ones(1, 2)).sum().backward()
    STEPS[what]()
    known_before(torch.tensor([4.0]))
    optimizer.step()
    monitor.close()
    left = [name for name, one in functions.items() if (one.__code__, one.__defaults__) != codes[name]]
    STEPS[what]()
    return {"intercepted": intercepted, "left": left, "wait": vars(dist.Work)["wait"] is wait}


class ByHand(nn.Module):
    """Tensor parallelism by hand: the output of the first layer is summed up over the ranks, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        with torch.no_grad():
            dist.all_reduce(hidden)
        return self.second(hidden)


def between_modules(*, output: str) -> dict[str, Any]:
    """A collective writes into an activation that two modules see."""
    torch.manual_seed(0)
    model = ByHand()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body = dist.all_reduce.__code__
    monitor = _monitor(output, model, optimizer, xy_distribution=True)
    seen: dict[str, float] = {}
    model.first.register_forward_hook(lambda module, args, out: seen.update(output=out.norm().item()))
    model.second.register_forward_pre_hook(lambda module, args: seen.update(input=args[0].norm().item()))
    model(_filled(1)).sum().backward()
    optimizer.step()
    monitor.close()
    return {**seen, "restored": dist.all_reduce.__code__ is body}


def point_to_point(*, output: str) -> list[list[str]]:
    """From rank to rank, while activations are monitored too and a second monitor of collectives is there; returns what
    the monitors say of functions that torch does not have."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    model = ByHand()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cc = {"enable": True, "cc_pre_hook": True}
    monitors = [
        _monitor(f"{output}/{number}", model, optimizer, xy_distribution=True, cc_distribution=cc)
        for number in range(2)
    ]
    model(_filled(1)).sum().backward()
    works = [dist.irecv(_garbage(), src=peer), dist.isend(_filled(rank + 1), dst=peer)]
    for work in works:
        work.wait()
    if rank == 0:
        dist.send(_filled(5), dst=1)
        dist.recv(_garbage(), src=1)
    else:
        dist.recv(_garbage(), src=0)
        dist.send(_filled(6), dst=0)
    ops = [dist.P2POp(dist.isend, _filled(rank + 3), peer), dist.P2POp(dist.irecv, _garbage(), peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    optimizer.step()
    notes = [monitor._session.coverage.to_dict()["notes"] for monitor in monitors]
    for monitor in monitors:
        monitor.close()
    return notes


def waiting_fails(*, output: str) -> dict[str, Any]:
    """What a collective has filled cannot be read: the program gets what it asked for, and goes on."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = _monitor(output, model, optimizer, cc_distribution={"enable": True})
    received: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_work_arrived", "_result_arrived"):
            patch.setattr(type(waits), name, lambda self, *args: 1 / 0)
        for _ in range(2):
            total = _filled(1)
            dist.all_reduce(total, async_op=True).wait()
            received.append(total.sum().item())
            received.append(functional.all_reduce(_filled(2), "sum", dist.group.WORLD).sum().item())
        with _coalescing_manager():
            patch.setattr(collective_hooks, "after", lambda *args: 1 / 0)
            patch.setattr(waiting, "after", lambda *args: 1 / 0)
            dist.all_gather_into_tensor(_garbage(4), _filled(1))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    monitor.close()
    return {"received": received}


def log_only(*, output: str, module_ranks: list[int]) -> None:
    """Ends the program in the first step, on every rank."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _monitor(
        output,
        model,
        optimizer,
        module_ranks=module_ranks,
        cc_distribution={"enable": True, "cc_log_only": True},
    )
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        print("a step went by", flush=True)
