"""A layer that is unfrozen while its model is trained, and given to the optimizer then, on each rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from .prove import Trained, _fingerprint, make_monitor
from .workload import STEPS, batch, loss_of, make_model, make_optimizer

UNFROZEN_AT = 1
ADDED = ("fc1.weight", "fc1.bias")


@frozen(kw_only=True)
class Thawing:
    """A training whose first layer is frozen at first."""

    trained: Trained
    unfreeze: Callable[[], None]


def model_with_frozen_layer() -> Any:
    """The other parameters are trained from the beginning."""
    model: Any = make_model()
    model.fc1.requires_grad_(False)
    return model


def build(engine: str) -> Thawing:
    """Make the training by an engine."""
    if engine.startswith("zero"):
        return _zero(int(engine.removeprefix("zero")))
    rank, model = torch.distributed.get_rank(), model_with_frozen_layer()
    called: list[Any] = []
    if engine == "fsdp1":
        called = [
            FullyShardedDataParallel(
                model,
                use_orig_params=True,
                device_id=torch.device("cpu"),
                auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            )
        ]
    elif engine == "fsdp2":
        for layer in (*model.children(), model):
            fully_shard(layer)
        called = [model]
    else:
        called = [DistributedDataParallel(model)]
    optimizer = make_optimizer(one for one in model.parameters() if one.requires_grad)

    def step(number: int) -> float:
        loss = loss_of(called[-1](batch(number, rank)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def unfreeze() -> None:
        model.fc1.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.fc1.parameters())})
        if engine == "ddp":
            # It reduces what needed gradients when it was made.
            called.append(DistributedDataParallel(model))

    return Thawing(trained=Trained(model=called[0], optimizer=optimizer, step=step), unfreeze=unfreeze)


def _zero(stage: int) -> Thawing:
    from . import deepspeed_zero

    trained = deepspeed_zero.build(stage=stage, frozen=" ".join(ADDED), one_group=True, gradient_clipping=1e6)

    def unfreeze() -> None:
        layer = trained.model.module.fc1
        layer.requires_grad_(True)
        # From stage 1 on, the optimizer's partitions are what was trained at `deepspeed.initialize`.
        if stage == 0:
            trained.optimizer.optimizer.add_param_group({"params": list(layer.parameters())})

    return Thawing(trained=trained, unfreeze=unfreeze)


def trained(*, engine: str, output: str) -> dict[str, Any]:
    """Losses and weights alone and with a monitor, and what an unsharded training of all batches has of the layer."""
    alone = _train(build(engine))
    one = build(engine)
    monitor = make_monitor(one.trained, Path(output))
    return {"alone": alone, "monitored": _train(one, monitor), "reference": reference()}


def _train(one: Thawing, monitor: Any = None) -> tuple[list[float], str]:
    losses = []
    for number in range(STEPS):
        if number == UNFROZEN_AT:
            one.unfreeze()
        losses.append(one.trained.step(number))
    if monitor is not None:
        monitor.close()
    torch.distributed.barrier()
    return losses, _fingerprint(one.trained)


def reference() -> dict[int, dict[str, Any]]:
    """Step -> the whole gradients of all trained parameters, and this rank's own (`own`), before the update."""
    model = model_with_frozen_layer()
    optimizer = make_optimizer(one for one in model.parameters() if one.requires_grad)
    found: dict[int, dict[str, Any]] = {}
    for number in range(STEPS):
        if number == UNFROZEN_AT:
            model.fc1.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.fc1.parameters())})
        names = {name: one for name, one in model.named_parameters() if one.requires_grad}
        own = torch.autograd.grad(loss_of(model(batch(number, torch.distributed.get_rank()))), list(names.values()))
        for rank in range(2):
            (loss_of(model(batch(number, rank))) / 2).backward()
        # Lists: tensors would be shared, which takes further connections.
        found[number] = {
            "own": {name: gradient.tolist() for name, gradient in zip(names, own, strict=True)},
            "whole": {name: one.grad.tolist() for name, one in names.items()},
        }
        optimizer.step()
        optimizer.zero_grad()
    return found
