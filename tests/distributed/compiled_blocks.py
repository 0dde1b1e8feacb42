"""A GPT of which blocks, or the whole, are compiled under DDP and FSDP2, on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.compiled.models import GPT, batch
from tests.compiled.training import without_caches
from tests.hooks.recorder import Monitored

Compile = Callable[[Any], Any]


def ddp_blocks(model: Any, compile_: Compile) -> Any:
    """Each block is compiled, the reduction is not."""
    for index, block in enumerate(model.blocks):
        model.blocks[index] = compile_(block)
    return DistributedDataParallel(model)


def ddp(model: Any, compile_: Compile) -> Any:
    """All is compiled, and parted where a bucket of gradients is whole."""
    return compile_(DistributedDataParallel(model, bucket_cap_mb=0.01))


def fsdp2(model: Any, compile_: Compile) -> Any:
    """Each block is compiled, and its parameters are sharded."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for index, block in enumerate(model.blocks):
        model.blocks[index] = compile_(block)
        fully_shard(model.blocks[index], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WAYS = {"ddp blocks": ddp_blocks, "ddp": ddp, "fsdp2": fsdp2}


def trained(*, way: str, backend: str) -> dict[str, Any]:
    """The same training compiled without a monitor, compiled with one, and in eager mode with one: what differs."""
    # So that the graph is parted in several, as those of large models are.
    before, torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, 4096
    try:
        base, base_graphs, _ = _train(way, backend, None)
        seen, seen_graphs, inside = _train(way, backend, "all")
        _, _, eager = _train(way, "", "")
    finally:
        torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = before
    assert inside is not None
    assert eager is not None
    rows, expected = (
        {key: value for key, value in one.recorder.rows.items() if key[0].startswith("actv")} for one in (inside, eager)
    )
    return {
        "equal": all(map(torch.equal, base, seen)),
        "graphs": seen_graphs - base_graphs,
        "rows": len(rows),
        "lost": sorted(expected.keys() - rows.keys()),
        "more": sorted(rows.keys() - expected.keys()),
        "doubled": inside.recorder.doubled(),
        "wrong": [key for key in rows if abs(rows[key] - expected.get(key, 0.0)) > 1e-3 * abs(rows[key]) + 1e-7],
    }


def _train(way: str, backend: str, inside: str | None) -> tuple[list[torch.Tensor], int, Monitored | None]:
    """Losses and this rank's weights, graphs that were compiled, and the monitor."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = GPT()

    def compile_(module: Any) -> Any:
        return torch.compile(module, backend=backend) if backend else module

    run = WAYS[way](model, compile_)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitored = None
    if inside is not None:
        monitored = Monitored(run, optimizer, activations=True, activation_gradients=True, inside_compiled=inside)
    found = []
    with without_caches():
        for step in range(2):
            inputs, wanted = batch("gpt", 2 * step + torch.distributed.get_rank())
            loss = F.cross_entropy(run(inputs).flatten(0, 1), wanted.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
    if monitored is not None:
        monitored.close()
    weights = [one.to_local() if hasattr(one, "to_local") else one for one in model.parameters()]
    return [*found, *(one.detach().clone() for one in weights)], counters["stats"].get("unique_graphs", 0), monitored
