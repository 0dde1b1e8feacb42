"""DeepSpeed on each rank, ZeRO 0 to 3."""

from __future__ import annotations

import os
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .prove import Trained, make_monitor, prove
from .workload import ROWS, STEPS, batch, loss_of, make_model, make_optimizer

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.ops import __compatible_ops__
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

# Communication in shared memory would first have to be compiled.
__compatible_ops__["deepspeed_shm_comm"] = False
# Half precision is slow on most CPUs, not impossible.
get_accelerator().is_fp16_supported = lambda: True

BETA = 0.9


def build(
    *,
    stage: int,
    grad_acc_steps: int = 1,
    offload: bool = False,
    given: str = "engine",
    zero: dict[str, Any] | None = None,
    frozen: str = "",
    one_group: bool = False,
    **settings: Any,
) -> Trained:
    """One training.

    Args:
        stage: of ZeRO.
        grad_acc_steps: micro-steps per step.
        offload: whether the optimizer's state lies on the CPU.
        given: what the script passes as the optimizer: ``engine``, ``optimizer`` or ``inner``.
        zero: further fields of ``zero_optimization``.
        frozen: names of parameters that are not trained.
        one_group: whether the optimizer has one parameter group, not two.
        settings: further fields of DeepSpeed's configuration.
    """
    model = make_model()
    for name in frozen.split():
        model.get_parameter(name).requires_grad_(False)
    partitioning: dict[str, Any] = {"stage": stage, **(zero or {})}
    if offload:
        partitioning["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": grad_acc_steps,
        "zero_optimization": partitioning,
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own Adam for the CPU would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        **settings,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # As is usual for weight decay. DeepSpeed updates one group after the other.
    groups = [[one for one in trained if one.ndim > 1], [one for one in trained if one.ndim == 1]]
    if one_group:
        groups = [trained]
    optimizer = make_optimizer([{"params": group} for group in groups])
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    inner = getattr(optimizer, "optimizer", optimizer)
    return Trained(
        model=engine,
        optimizer={"engine": engine, "optimizer": optimizer, "inner": inner}[given],
        step=_step(engine, grad_acc_steps),
        grad_acc_steps=grad_acc_steps,
        weights=lambda: [local(parameter) for parameter in model.parameters()],
        watched=[optimizer, inner],
    )


def local(parameter: nn.Parameter) -> torch.Tensor:
    """The rank's own elements: partitions of ZeRO 3 end in padding, which holds anything."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    size = parameter.ds_tensor.numel()
    begin = torch.distributed.get_rank() * size
    return parameter.ds_tensor.detach()[: max(0, min(size, parameter.ds_numel - begin))]


def _step(engine: Any, grad_acc_steps: int) -> Any:
    rank = torch.distributed.get_rank()
    dtype = next(engine.parameters()).dtype

    def step(number: int) -> float:
        total = 0.0
        for micro_step in range(grad_acc_steps):
            loss = loss_of(engine(batch(number, rank, micro_step).to(dtype)))
            total += engine.backward(loss).item()
            engine.step()
        return total

    return step


def proof(*, output: str, config: dict[str, Any] | None = None, **variant: Any) -> dict[str, Any]:
    """The four trainings of `prove`."""
    return prove(lambda: build(**variant), output=output, **(config or {}))


def half_precision(*, output: str, steps: int, **variant: Any) -> dict[str, Any]:
    """A monitored training in half precision, and what DeepSpeed itself says of the weights and moments.

    Returns:
        Per step the whole weights and moments before it, the gradients that the first moments show to be consumed,
        and whether it was skipped.
    """
    # DeepSpeed's functions find the moments of the first group alone.
    trained = build(one_group=True, **variant)
    engine = trained.model
    names = dict(engine.module.named_parameters())
    monitor = make_monitor(trained, Path(output), ndigits=12, monitor_mbs_grad=False)
    recorded = []
    # The optimizers of ZeRO 0 take a step without gradients when they are made.
    updated = hasattr(engine.optimizer, "fp32_groups")
    for number in range(steps):
        before = {name: _state(engine, parameter, "exp_avg", updated) for name, parameter in names.items()}
        weights = {name: _state(engine, parameter, None, updated) for name, parameter in names.items()}
        trained.step(number)
        applied = engine.was_step_applied()
        moments = before if updated else {}
        updated = updated or applied
        after = {name: _state(engine, parameter, "exp_avg", updated) for name, parameter in names.items()}
        gradients = {name: (after[name] - BETA * before[name]) / (1 - BETA) for name in names}
        recorded.append(
            {
                "weights": _arrays(weights),
                "moments": _arrays(moments),
                "gradients": _arrays(gradients if applied else {}),
                "skipped": not applied,
            }
        )
    monitor.close()
    return {"steps": recorded, "optimizer": type(engine.optimizer).__name__, "hooks": _left_over(trained)}


def _state(engine: Any, parameter: nn.Parameter, key: str | None, updated: bool) -> torch.Tensor:
    """The whole weight or moment in single precision: a collective, called on all ranks alike.

    ``updated``: whether there are moments yet.
    """
    optimizer = engine.optimizer
    shape = getattr(parameter, "ds_shape", parameter.shape)
    if key is not None and not updated:
        return torch.zeros(shape)
    if hasattr(optimizer, "fp32_groups"):
        # ZeRO 0, of which DeepSpeed's functions know nothing.
        pairs = zip(chain(*optimizer.fp16_groups), chain(*optimizer.fp32_groups), strict=True)
        master = next(copy for one, copy in pairs if one is parameter)
        found = master if key is None else optimizer.optimizer.state[master][key]
    elif key is None:
        found = safe_get_full_fp32_param(parameter)
    else:
        found = safe_get_full_optimizer_state(parameter, key)
    return found.detach().clone().view(shape)


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """For the way to the test process."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _left_over(trained: Trained) -> int:
    return sum(len(getattr(one, "_optimizer_step_pre_hooks", ())) for one in trained.watched)


def unknown_optimizer(*, output: str, **variant: Any) -> None:
    """A monitored training with an optimizer whose attributes have other names."""
    trained = build(**variant)
    optimizer = trained.model.optimizer
    kind = type(optimizer)
    optimizer.__class__ = type("_Renamed", (kind,), {"real_dp_process_group": property(_renamed)})
    monitor = make_monitor(trained, Path(output))
    optimizer.__class__ = kind
    for number in range(STEPS):
        trained.step(number)
    monitor.close()


def _renamed(optimizer: Any) -> Any:
    raise AttributeError("no such attribute in this version")


def current_gradients(**variant: Any) -> dict[str, float]:
    """The norms of the gradients between backward and step."""
    trained = build(**variant)
    engine = trained.model
    with tempfile.TemporaryDirectory() as folder:
        monitor = make_monitor(trained, Path(folder), ops=["norm"], format="api")
        engine.backward(loss_of(engine(batch(0, torch.distributed.get_rank()))))
        reduced, _ = monitor.generate_wgrad_metrics()
        monitor.close()
    return {tag.split(":")[1].split("/")[0]: numbers["norm"] for tag, numbers in reduced.items()}
