"""Trainings on each rank with a fault of parallelism put into them at one step, for `msmon verify`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from msmon.config.values import OPS
from msmon.pytorch import TrainerMon

from .prove import CONFIG as PROOF
from .prove import Trained, make_monitor
from .workload import batch, loss_of, make_model, make_optimizer

STEPS = 12
AT = 7
"""The step at which the fault begins."""
RANK = 1
"""The rank that has it, where it is one."""
TENSOR = "fc2.weight"
CONFIG: dict[str, Any] = {"format": ["parquet"], "ops": ["norm", "min", "max", "mean", "shape"]}
PRINTS = ["fingerprint"] if "fingerprint" in OPS else []
"""With it every bit is compared."""


class Loop:
    """A training loop with a place for a fault wherever one can be.

    Args:
        kind: `ddp`, `fsdp2`, or `by hand`, where the loop itself reduces gradients.
        grad_acc_steps: micro-steps.
        clip: gradients are clipped to this norm.
        frozen: this parameter is not trained.
    """

    def __init__(self, kind: str, *, grad_acc_steps: int = 1, clip: float = 0.0, frozen: str = "") -> None:
        self.rank = torch.distributed.get_rank()
        self.kind, self.acc, self.clip = kind, grad_acc_steps, clip
        module = make_model()
        if frozen:
            module.get_parameter(frozen).requires_grad_(False)
        self.module = module
        if kind == "ddp":
            self.model: nn.Module = DistributedDataParallel(module)
        else:
            if kind == "fsdp2":
                fully_shard(module)
            self.model = module
        self.optimizer = make_optimizer(one for one in self.model.parameters() if one.requires_grad)
        self.own: dict[str, torch.Tensor] = {}

    @property
    def parameter(self) -> torch.Tensor:
        return self.module.get_parameter(TENSOR)

    def data(self, step: int, micro_step: int) -> torch.Tensor:
        """Inputs of this rank."""
        return batch(step, self.rank, micro_step)

    def before_step(self, step: int) -> None:
        """Nothing of the step has run."""

    def between_micro_steps(self, step: int) -> None:
        """A backward has ended, and another comes."""

    def after_backward(self, step: int) -> None:
        """Gradients are reduced, or are now."""
        if self.kind == "by hand":
            for parameter in self.model.parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()

    def clip_gradients(self, step: int) -> None:
        """Clip to the norm of all."""
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def after_monitor(self) -> None:
        """The monitor is attached."""

    def step(self, number: int) -> float:
        """One step."""
        self.before_step(number)
        for micro_step in range(self.acc):
            last = micro_step == self.acc - 1
            if self.kind == "ddp" and not last:
                context: Any = self.model.no_sync()
            else:
                context = contextlib.nullcontext()
            if self.kind == "fsdp2":
                self.model.set_requires_gradient_sync(last)
            with context:
                (loss_of(self.model(self.data(number, micro_step))) / self.acc).backward()
            if not last:
                self.between_micro_steps(number)
        self.after_backward(number)
        self.clip_gradients(number)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return 0.0


class FlippedBit(Loop):
    def before_step(self, step: int) -> None:
        if step == AT and self.rank == RANK:
            bits = self.parameter.data.view(-1).view(torch.int32)
            bits[5] ^= 1


class OtherStart(Loop):
    def after_monitor(self) -> None:
        if self.rank == RANK:
            for parameter in self.module.parameters():
                parameter.data.mul_(1.01)


class LoadedOnOneRank(Loop):
    def before_step(self, step: int) -> None:
        if step == AT and self.rank == RANK:
            for parameter in self.module.parameters():
                parameter.data.mul_(0.99)


class _OwnGradients(Loop):
    """Knows the rank's own gradient."""

    def after_monitor(self) -> None:
        for name, parameter in self.module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self.keep(name, p))

    def keep(self, name: str, parameter: torch.Tensor) -> None:
        self.own[name] = parameter.grad.clone()


class NotReduced(_OwnGradients):
    def after_backward(self, step: int) -> None:
        if step >= AT and self.rank == RANK:
            self.parameter.grad.copy_(self.own[TENSOR])


class LostRank(_OwnGradients):
    """The rank's gradient of one tensor does not arrive in the sum."""

    number = -1

    def before_step(self, step: int) -> None:
        self.number = step

    def keep(self, name: str, parameter: torch.Tensor) -> None:
        if name == TENSOR and self.number >= AT and self.rank == RANK:
            parameter.grad.zero_()


class DividedTwice(Loop):
    def after_backward(self, step: int) -> None:
        if step >= AT:
            for parameter in self.model.parameters():
                parameter.grad /= torch.distributed.get_world_size()


class BucketDividedTwice(Loop):
    def after_backward(self, step: int) -> None:
        if step >= AT:
            self.parameter.grad /= torch.distributed.get_world_size()


class NotDividedByMicroSteps(Loop):
    def after_backward(self, step: int) -> None:
        for parameter in self.model.parameters():
            parameter.grad *= self.acc


class ClearedBetween(Loop):
    def between_micro_steps(self, step: int) -> None:
        self.optimizer.zero_grad()


class MicroBatchLost(Loop):
    """The gradient of one bias is cleared once between two micro-steps, so that nothing else shows it."""

    def between_micro_steps(self, step: int) -> None:
        if step == AT and self.rank == RANK:
            self.module.fc2.bias.grad.zero_()


class OtherArrival(Loop):
    """Something else arrives on one rank."""

    def after_backward(self, step: int) -> None:
        group = torch.distributed.ProcessGroup
        # What is in the class binds; what it gives does not.
        original = group.__dict__["allreduce"]

        def allreduce(self: Any, tensors: list[torch.Tensor], *more: Any) -> Any:
            work = original.__get__(self, group)(tensors, *more)
            work.wait()
            tensors[0].view(-1)[0] += 1e-3
            return work

        if step == AT and self.rank == RANK:
            group.allreduce = allreduce
        try:
            super().after_backward(step)
        finally:
            group.allreduce = original


class SameData(Loop):
    def data(self, step: int, micro_step: int) -> torch.Tensor:
        return batch(step, 0 if step >= AT else self.rank, micro_step)


class NoLongerUpdated(Loop):
    """The update of one tensor is taken back, as if it were made to a copy."""

    def clip_gradients(self, step: int) -> None:
        self.kept = self.parameter.detach().clone()
        if step == AT:
            # Before the monitor's, which reads what the optimizer has left.
            hooks = self.optimizer._optimizer_step_post_hooks
            handle = self.optimizer.register_step_post_hook(self.undo)
            hooks.move_to_end(handle.id, last=False)

    def undo(self, *unused: object) -> None:
        self.parameter.data.copy_(self.kept)


class LocalNorm(Loop):
    """Each rank clips by the norm of its own parts."""

    def clip_gradients(self, step: int) -> None:
        parts = [one.grad.to_local() for one in self.model.parameters()]
        norm = torch.stack([part.norm() for part in parts if part.numel()]).norm()
        if step >= AT:
            for part in parts:
                part.mul_(0.01 / norm)


FAULTS: dict[str, tuple[type[Loop], dict[str, Any]]] = {
    "healthy": (Loop, {"kind": "ddp"}),
    "healthy fsdp2": (Loop, {"kind": "fsdp2"}),
    "healthy accumulation": (Loop, {"kind": "ddp", "grad_acc_steps": 3}),
    "healthy accumulation fsdp2": (Loop, {"kind": "fsdp2", "grad_acc_steps": 3}),
    "healthy clipping": (Loop, {"kind": "ddp", "clip": 0.05}),
    "healthy clipping fsdp2": (Loop, {"kind": "fsdp2", "clip": 0.05}),
    "healthy frozen": (Loop, {"kind": "ddp", "frozen": "fc1.weight"}),
    "healthy by hand": (Loop, {"kind": "by hand"}),
    "flipped bit": (FlippedBit, {"kind": "ddp"}),
    "other start": (OtherStart, {"kind": "ddp"}),
    "loaded on one rank": (LoadedOnOneRank, {"kind": "ddp"}),
    "not reduced": (NotReduced, {"kind": "ddp"}),
    "lost rank": (LostRank, {"kind": "ddp"}),
    "divided twice": (DividedTwice, {"kind": "ddp"}),
    "bucket divided twice": (BucketDividedTwice, {"kind": "ddp"}),
    "bucket divided twice fsdp2": (BucketDividedTwice, {"kind": "fsdp2"}),
    "not divided by micro-steps": (NotDividedByMicroSteps, {"kind": "ddp", "grad_acc_steps": 4}),
    "cleared between micro-steps": (ClearedBetween, {"kind": "ddp", "grad_acc_steps": 3}),
    "micro-batch lost": (MicroBatchLost, {"kind": "ddp", "grad_acc_steps": 2}),
    "other arrival": (OtherArrival, {"kind": "by hand"}),
    "same data": (SameData, {"kind": "ddp"}),
    "no longer updated": (NoLongerUpdated, {"kind": "ddp"}),
    "local norm": (LocalNorm, {"kind": "fsdp2"}),
}


def train_all(*, output: str, faults: list[str], prints: bool = True, **config: Any) -> None:
    """Each of the trainings once, with a monitor on every rank, into a folder of its name.

    Args:
        prints: with fingerprints, where this version has them.
    """
    for name in faults:
        kind, arguments = FAULTS[name]
        loop = kind(**arguments)
        fields = {**CONFIG, **config, "ops": [*CONFIG["ops"], *(PRINTS if prints else ())]}
        groups = {"dp_group": torch.distributed.group.WORLD} if loop.kind == "by hand" else {}
        if loop.kind == "by hand":
            fields["cc_distribution"] = {"enable": True, "cc_pre_hook": True}
        trained = Trained(
            model=loop.model, optimizer=loop.optimizer, step=loop.step, grad_acc_steps=loop.acc, groups=groups
        )
        monitor = make_monitor(trained, Path(output) / name.replace(" ", "_"), **fields)
        loop.after_monitor()
        for step in range(STEPS):
            loop.step(step)
        monitor.close()
        torch.distributed.barrier()


def train_single(output: Path, *, ranks: int, micro_steps: int = 1, perturbed: bool = False) -> None:
    """The same training in this process alone, on the batches of all ranks and micro-steps at once.

    Args:
        perturbed: with the batches in another order, which rounds otherwise.
    """
    output.mkdir()
    (output / "config.json").write_text(json.dumps({**PROOF, **CONFIG}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONITOR_OUTPUT_DIR", str(output))
        monitor = TrainerMon(str(output / "config.json"))
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(STEPS):
        parts = [batch(step, rank, micro) for rank in range(ranks) for micro in range(micro_steps)]
        loss_of(model(torch.cat(parts[::-1] if perturbed else parts))).backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
