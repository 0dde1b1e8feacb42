"""What can go wrong in a parallel training. Each kind is put into a healthy training from the outside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import distributed

from .scene import Place, Scene, Truth

DATA_PARALLEL = ("ddp", "ddp 4", "fsdp2", "fsdp2 2x2", "zero 1", "zero 2", "zero 3", "megatron tp dp")
REPLICAS = ("ddp", "ddp 4", "megatron tp dp")
SPLIT = ("fsdp2", "fsdp2 2x2", "zero 1", "zero 2", "zero 3")
TENSOR_PARALLEL = ("dtensor tp", "megatron tp", "megatron tp sp")
MEGATRON = ("megatron tp", "megatron tp sp", "megatron pp", "megatron ep", "megatron tp dp")
EVERY = (*DATA_PARALLEL, *TENSOR_PARALLEL, "megatron pp", "megatron ep")

MANTISSA = 23
"""Bits of it in single precision."""
BELOW_A_SUM = 12
"""Lower bits of one of some hundred elements are within the rounding of their sum."""

KINDS: dict[str, type[Fault]] = {}


class Fault:
    """Nothing goes wrong. A kind of fault says at which of these places something does.

    Args:
        scene: the training.
        place: what was drawn.
    """

    name: ClassVar[str]
    engines: ClassVar[tuple[str, ...]]
    settings: ClassVar[dict[str, Any]] = {"grad_acc_steps": 1, "clip": 0.0}
    """How the engine is set up."""
    first_step: ClassVar[int | None] = None
    """The step at which it begins; None: a drawn one."""
    needs_own = False
    """Whether the gradients before the reduction are needed."""
    sort = ""
    """Part of the names of the tensors that are drawn from."""

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            KINDS[cls.name] = cls

    def __init__(self, scene: Scene, place: Place) -> None:
        self.scene, self.place = scene, place
        self.number = -1

    @property
    def here(self) -> bool:
        """Whether this is the faulty rank."""
        return self.scene.rank == self.place.rank

    @property
    def begun(self) -> bool:
        """Whether the step in flight is the faulty one or a later one."""
        return self.number >= self.place.step

    def truth(self) -> Truth:
        """One tensor of one rank."""
        return Truth(step=self.place.step, tensors=(self.place.tensor,), ranks=(self.place.rank,))

    def recorded(self) -> bool:
        """Whether what is recorded can show it."""
        return True

    def everywhere(self, *tensors: str) -> Truth:
        """All ranks."""
        return Truth(step=self.place.step, tensors=tensors, ranks=tuple(range(self.scene.world)))

    def before_step(self) -> None:
        """The step `number` is about to begin."""

    def data(self, step: int, rank: int, micro_step: int) -> tuple[int, int, int]:
        """The batch that is read in place of this one."""
        return step, rank, micro_step

    def between(self) -> None:
        """A backward has ended, and the step has another one."""

    def at_update(self) -> None:
        """Gradients are reduced and about to be consumed."""

    def after_update(self) -> None:
        """Weights have been updated, and nobody has read them yet."""

    def during(self) -> contextlib.AbstractContextManager[None]:
        """Around the step."""
        return contextlib.nullcontext()


def _flip(tensor: torch.Tensor, factor: float, *, bits: tuple[int, int]) -> None:
    """One bit of one element, of those from the first to before the last."""
    whole = tensor.detach().contiguous()
    flat = whole.view(-1)
    chosen = int(factor * flat.numel())
    # Zeros have no mantissa to speak of.
    order = [*range(chosen, flat.numel()), *range(chosen)]
    at = next((one for one in order if flat[one] != 0), chosen)
    flat[at : at + 1].view(torch.int32)[0] ^= 1 << _bit(factor, bits)
    tensor.detach().copy_(whole)


def _bit(factor: float, bits: tuple[int, int]) -> int:
    return bits[0] + int(factor * 1000) % (bits[1] - bits[0])


# Tensors of one rank change between two steps


class WeightBit(Fault):
    name, engines = "flipped bit in a weight", EVERY

    def before_step(self) -> None:
        if self.here and self.number == self.place.step:
            value = self.scene.value(self.place.tensor)
            assert value is not None
            _flip(value, self.place.factor, bits=(0, MANTISSA))


class MomentBit(Fault):
    name, engines = "flipped bit in a moment", EVERY
    key = "exp_avg"

    def before_step(self) -> None:
        if self.here and self.number == self.place.step:
            moment = self.scene.moment(self.place.tensor, self.key)
            assert moment is not None
            _flip(moment, self.place.factor, bits=(0, MANTISSA))

    def recorded(self) -> bool:
        """Where nobody has the same part a sum is all there is, and it rounds."""
        return self.scene.source.engine == "ddp" or _bit(self.place.factor, (0, MANTISSA)) >= BELOW_A_SUM


class StaleCheckpoint(Fault):
    """One rank has the weights of two steps ago."""

    name, engines = "stale weights loaded on one rank", EVERY

    def before_step(self) -> None:
        if self.here and self.number == self.place.step - 2:
            values = {name: self.scene.value(name) for name in self.scene.weights}
            self.kept = {name: value.clone() for name, value in values.items() if value is not None}
        if self.here and self.number == self.place.step:
            for name, kept in self.kept.items():
                value = self.scene.value(name)
                assert value is not None
                value.copy_(kept)

    def truth(self) -> Truth:
        return Truth(step=self.place.step, tensors=(), ranks=(self.place.rank,))


class OtherSeed(Fault):
    """One rank begins with other weights. Of two ranks neither is the wrong one."""

    name, engines = "other seed at the start", ("ddp", "ddp 4", "megatron tp dp")
    first_step = 0

    def before_step(self) -> None:
        if self.here and self.number == 0:
            for name in self.scene.weights:
                value = self.scene.value(name)
                if value is not None:
                    value.mul_(1.01)

    def truth(self) -> Truth:
        size = self.scene.data_group.size()
        replicas = tuple(distributed.get_process_group_ranks(self.scene.data_group))
        if self.scene.data_rank(self.place.rank) < 0:
            replicas = tuple(rank for rank in range(self.scene.world) if rank not in replicas)
        return Truth(step=0, tensors=(), ranks=(self.place.rank,) if size > 2 else replicas)


class Buffer(Fault):
    """A buffer of one rank is not that of the others."""

    name, engines = "buffer that drifts on one rank", ("ddp", "ddp 4")
    settings: ClassVar[dict[str, Any]] = {**Fault.settings, "buffers": True}

    def before_step(self) -> None:
        if self.here and self.begun:
            self.scene.module().get_buffer("scale").mul_(1.05)

    def truth(self) -> Truth:
        return Truth(step=self.place.step, tensors=("scale",), ranks=(self.place.rank,))

    def recorded(self) -> bool:
        """Buffers are not."""
        return False


class ActivationBit(Fault):
    """The exponent of one element of a layer's output."""

    name, engines = "flipped bit in an activation", (*REPLICAS[:2], "megatron tp")

    def __init__(self, scene: Scene, place: Place) -> None:
        super().__init__(scene, place)
        module = scene.module().get_submodule("fc2" if scene.source.engine != "megatron" else "decoder.layers.1.mlp")
        module.register_forward_hook(self.hook)

    def recorded(self) -> bool:
        """Activations of ranks with different data have nothing to be compared with."""
        return self.scene.source.engine != "ddp"

    def hook(self, module: Any, args: Any, output: Any) -> None:
        if self.here and self.number == self.place.step:
            first = output[0] if isinstance(output, tuple) else output
            _flip(getattr(first, "_local_tensor", first), self.place.factor, bits=(24, 26))

    def truth(self) -> Truth:
        return Truth(step=self.place.step, tensors=(), ranks=(self.place.rank,))


# Reductions


class Reduction(Fault):
    """From a step on the gradients of one layer, or of all, are not what a reduction over all ranks makes of them."""

    needs_own = True
    all_tensors = False
    """Whether it concerns those of all layers."""

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        """The whole gradient that comes out on this rank instead, of all ranks' own; None: the right one."""
        raise NotImplementedError

    def at_update(self) -> None:
        if not self.begun:
            return
        rank = self.scene.data_rank(self.place.rank)
        for name in self.scene.weights if self.all_tensors else self.place.layer:
            if name not in self.scene.own:
                continue
            owns = self.scene.owns(name)
            target = self.scene.gradient(name)
            whole = None if rank < 0 else self.made(owns, torch.stack(owns).mean(0), rank)
            if whole is not None and target is not None:
                target.copy_(self.scene.part(name, whole).view(target.shape))

    def truth(self) -> Truth:
        return Truth(step=self.place.step, tensors=self.place.layer, ranks=(self.place.rank,))

    def recorded(self) -> bool:
        """The sum of a gradient is 0 whatever happens where a normalisation follows the layer."""
        return self.all_tensors or not self.place.tensor.startswith("fc1.")


class Skipped(Reduction):
    """One rank goes on with its own gradient of a layer."""

    name, engines = "one rank skips a reduction", DATA_PARALLEL

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        return owns[rank] if self.here else None


class Lost(Reduction):
    name, engines = "a rank is missing from a reduction", DATA_PARALLEL

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        return mean - owns[rank] / len(owns)


class Twice(Reduction):
    name, engines = "a rank is twice in a reduction", DATA_PARALLEL

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        return mean + owns[rank] / len(owns)


class _OnAll(Reduction):
    def truth(self) -> Truth:
        group = distributed.get_process_group_ranks(self.scene.data_group)
        if self.scene.data_rank(self.place.rank) < 0:
            group = [rank for rank in range(self.scene.world) if rank not in group]
        split = self.scene.source.engine not in ("ddp", "megatron")
        return Truth(step=self.place.step, tensors=self.place.layer, ranks=tuple(group), any_rank=split)


class Forgotten(_OnAll):
    """Each rank goes on with its own gradient of a layer."""

    name, engines = "a bucket is not reduced", DATA_PARALLEL

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        return owns[distributed.get_rank(self.scene.data_group)]


class BucketDivided(_OnAll):
    name, engines = "a bucket is divided twice", DATA_PARALLEL

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        return mean / len(owns)


class BucketSummed(_OnAll):
    name, engines = "a bucket is not divided", DATA_PARALLEL

    def made(self, owns: list[torch.Tensor], mean: torch.Tensor, rank: int) -> torch.Tensor | None:
        return mean * len(owns)


class DividedTwice(Reduction):
    """All gradients on all ranks."""

    name, engines = "all gradients are divided twice", DATA_PARALLEL[:-1]
    needs_own = False
    all_tensors = True

    def at_update(self) -> None:
        for name in self.scene.weights if self.begun else ():
            gradient = self.scene.gradient(name)
            if gradient is not None:
                gradient.div_(self.scene.world)

    def truth(self) -> Truth:
        return self.everywhere()


class NotDividedBySteps(DividedTwice):
    """The division by the number of micro-steps is lost on the way."""

    name = "accumulation without division"
    engines = DATA_PARALLEL[:-1]
    settings: ClassVar[dict[str, Any]] = {"grad_acc_steps": 4, "clip": 0.0}

    def at_update(self) -> None:
        for name in self.scene.weights if self.begun else ():
            gradient = self.scene.gradient(name)
            if gradient is not None:
                gradient.mul_(4)


class LocalNorm(Fault):
    """Each rank clips its parts by their norm alone."""

    name, engines = "clipping by the local norm", SPLIT

    clipped = -1
    factor: Any = 1.0

    def at_update(self) -> None:
        found = [self.scene.gradient(name) for name in self.scene.weights]
        parts = [one for one in found if one is not None]
        if not self.begun or not parts:
            return
        if self.clipped < self.number:
            # Of several groups of parameters, which are updated one after the other, that of the first.
            self.factor, self.clipped = 0.01 / torch.stack([part.norm() for part in parts]).norm(), self.number
        for part in parts:
            part.mul_(self.factor)

    def truth(self) -> Truth:
        return self.everywhere()


class MicroBatch(Fault):
    """One rank clears a gradient between two micro-steps."""

    name, engines = "a micro-batch is lost", ("ddp", "ddp 4")
    settings: ClassVar[dict[str, Any]] = {"grad_acc_steps": 2, "clip": 0.0}
    sort = "bias"

    def recorded(self) -> bool:
        """As for reductions."""
        return not self.place.tensor.startswith("fc1.")

    def between(self) -> None:
        if self.here and self.number == self.place.step:
            parameter = self.scene.weights[self.place.tensor].parameter
            gradient = getattr(parameter, "main_grad", None)
            (parameter.grad if gradient is None else gradient).zero_()


# Updates


class Stands(Fault):
    """A tensor is no longer updated, as if the optimizer had a copy of it."""

    name, engines = "a tensor is no longer updated", EVERY
    only_here = False

    def at_update(self) -> None:
        value = self.scene.value(self.place.tensor)
        if self.begun and value is not None and (self.here or not self.only_here):
            self.kept = value.clone()

    def after_update(self) -> None:
        value = self.scene.value(self.place.tensor)
        if self.begun and value is not None and (self.here or not self.only_here):
            value.copy_(self.kept)

    def truth(self) -> Truth:
        holds = [torch.zeros(1) for _ in range(self.scene.world)]
        value = self.scene.value(self.place.tensor)
        mine = torch.tensor([float(value is not None and value.numel() > 0)])
        distributed.all_gather(holds, mine)
        ranks = tuple(rank for rank, one in enumerate(holds) if one.item())
        return Truth(step=self.place.step, tensors=(self.place.tensor,), ranks=ranks)


class UpdateLost(Fault):
    """One rank's update of a tensor at one step."""

    name, engines = "one rank's update of a tensor is lost", REPLICAS

    def at_update(self) -> None:
        value = self.scene.value(self.place.tensor)
        if self.here and self.number == self.place.step and value is not None:
            self.kept = value.clone()

    def after_update(self) -> None:
        value = self.scene.value(self.place.tensor)
        if self.here and self.number == self.place.step and value is not None:
            value.copy_(self.kept)


class OtherRate(Fault):
    """One rank's learning rate is another from a step on."""

    name, engines = "another learning rate on one rank", REPLICAS

    def before_step(self) -> None:
        if self.here and self.number == self.place.step:
            inner = getattr(self.scene.trained.optimizer, "chained_optimizers", [self.scene.trained.optimizer])
            for one in inner:
                for group in one.param_groups:
                    group["lr"] = 1.1e-2

    def truth(self) -> Truth:
        return Truth(step=self.place.step, tensors=(), ranks=(self.place.rank,))


class FrozenMoves(Fault):
    """A frozen weight is changed by the update of all ranks."""

    name, engines = "a frozen weight moves", ("ddp", "ddp 4")
    settings: ClassVar[dict[str, Any]] = {**Fault.settings, "frozen": "fc1.weight"}

    def after_update(self) -> None:
        if self.number == self.place.step:
            self.scene.module().get_parameter("fc1.weight").detach().mul_(0.99)

    def truth(self) -> Truth:
        return self.everywhere("fc1.weight")

    def recorded(self) -> bool:
        """What the optimizer does not have has no rows."""
        return False


# Data


class SameData(Fault):
    name, engines = "all ranks get the same data", DATA_PARALLEL

    def data(self, step: int, rank: int, micro_step: int) -> tuple[int, int, int]:
        return step, 0 if self.begun else rank, micro_step

    def truth(self) -> Truth:
        return self.everywhere()


class StuckLoader(Fault):
    """The batches of one step come again and again."""

    name, engines = "the data loader is stuck", EVERY

    def data(self, step: int, rank: int, micro_step: int) -> tuple[int, int, int]:
        return min(step, self.place.step - 1), rank, micro_step

    def truth(self) -> Truth:
        """Of a pipeline the first stage has inputs."""
        pipeline = self.scene.trained.process_group is not None
        return Truth(step=self.place.step, tensors=(), ranks=(0,)) if pipeline else self.everywhere()


class OtherInputs(Fault):
    """A rank of a tensor-parallel group reads other batches."""

    name, engines = "tensor-parallel ranks get other data", TENSOR_PARALLEL

    def data(self, step: int, rank: int, micro_step: int) -> tuple[int, int, int]:
        return step, rank + 5 if self.begun and self.here else rank, micro_step

    def truth(self) -> Truth:
        return self.everywhere()


# What only some engines have


class NormNotReduced(Fault):
    """The gradient of a norm under sequence parallelism stays that of the rank's own part of the sequence."""

    name, engines = "a norm's gradient is not reduced", ("megatron tp sp", "dtensor tp")
    needs_own = True
    sort = "norm"

    def at_update(self) -> None:
        if not self.begun:
            return
        for name in self.place.layer:
            if self.scene.source.engine == "megatron":
                gradient = self.scene.gradient(name)
                if gradient is not None:
                    gradient.copy_(self.scene.own[name].view(gradient.shape))
            else:
                from torch.distributed.tensor import DTensor, Replicate

                parameter = self.scene.weights[name].parameter
                own = parameter.grad._local_tensor
                parameter.grad = DTensor.from_local(own, parameter.device_mesh, [Replicate()], run_check=False)

    def truth(self) -> Truth:
        return self.everywhere(*self.place.layer)


class TiedPart(Fault):
    """The first and the last pipeline stage do not add up the gradients of the weight that they share."""

    name, engines = "tied weights part", ("megatron pp",)
    needs_own = True
    sort = "word_embeddings"

    def at_update(self) -> None:
        for name, own in self.scene.own.items():
            if self.begun and (name.endswith("word_embeddings.weight") or name == "output_layer.weight"):
                gradient = self.scene.gradient(name)
                if gradient is not None:
                    gradient.copy_(own.view(gradient.shape))

    def truth(self) -> Truth:
        return self.everywhere("embedding.word_embeddings.weight", "output_layer.weight")


class ExpertScaled(Fault):
    """The gradients of a layer's experts are divided by the size of another group."""

    name, engines = "an expert is scaled by the wrong group", ("megatron ep",)
    sort = "local_experts"

    def at_update(self) -> None:
        for name in self.place.layer if self.begun and self.here else ():
            gradient = self.scene.gradient(name)
            if gradient is not None:
                gradient.div_(2)

    def truth(self) -> Truth:
        return Truth(step=self.place.step, tensors=self.place.layer, ranks=(self.place.rank,))


class OtherArrival(Fault):
    """Something else arrives on one rank."""

    name, engines = "a collective delivers other bits", ("by hand",)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        group = distributed.ProcessGroup
        # What is in the class binds; what it gives does not.
        original = group.__dict__["allreduce"]
        left = [int(self.place.factor * len(self.scene.weights))]

        def allreduce(this: Any, tensors: list[torch.Tensor], *more: Any) -> Any:
            work = original.__get__(this, group)(tensors, *more)
            work.wait()
            if left[0] == 0:
                _flip(tensors[0], self.place.factor, bits=(12, 23))
            left[0] -= 1
            return work

        if self.here and self.number == self.place.step:
            group.allreduce = allreduce
        try:
            yield
        finally:
            group.allreduce = original

    def truth(self) -> Truth:
        return self.everywhere()
