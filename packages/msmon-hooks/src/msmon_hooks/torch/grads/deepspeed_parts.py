"""Where DeepSpeed's optimizers keep the weight, gradient and moments of a parameter: this rank's part of each.

Everything is a view of what the optimizer has; nothing is gathered, swapped in or copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from attrs import evolve, frozen
from torch import distributed, nn

from msmon_hooks.parameter_state import ParameterState
from msmon_hooks.torch.moments import StateReader
from msmon_hooks.torch.wrappers import is_a


@frozen(slots=True, eq=False)
class Place:
    """The elements of a tensor that the inner optimizer updates."""

    tensor: torch.Tensor
    offset: int
    size: int
    shape: tuple[int, ...] | None = None
    """Of the part, where it is a whole parameter."""

    def of(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The same elements of another tensor of that size; None where it is of another size (a scalar, or on NVMe)."""
        if tensor is None or tensor.numel() != self.tensor.numel():
            return None
        part = tensor.detach().view(-1).narrow(0, self.offset, self.size)
        return part if self.shape is None else part.view(self.shape)


def _part(place: Place, name: str, values: Callable[[], torch.Tensor]) -> torch.Tensor:
    part = place.of(values())
    if part is None:
        raise ValueError(f"its {name} is of another size than the parameter")
    return part


class Parts:
    """ZeRO 0 in single precision: there is one optimizer, and it has the model's own parameters."""

    needs: tuple[str, ...] = ("param_groups",)
    """Attributes of the optimizer without which nothing can be read."""
    sharded = False
    """Whether ranks hold different parts."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._updating: set[int] = set()
        self._states: StateReader | None = None

    def inner_optimizers(self) -> Iterator[Any]:
        """The optimizers that update weights inside of this one's step."""
        yield from ()

    def begin_update(self, inner: Any) -> None:
        """An inner optimizer is about to update what is now in its parameter groups."""
        self._updating = {id(tensor) for group in inner.param_groups for tensor in group["params"]}

    def end_update(self) -> None:
        """Nothing is being updated any more."""
        self._updating = set()

    def knows(self, parameter: nn.Parameter) -> bool:
        """Whether the optimizer trains the parameter."""
        return any(parameter is one for group in self.optimizer.param_groups for one in group["params"])

    def place(self, parameter: nn.Parameter) -> Place | None:
        """What of the inner optimizer's tensors stands for the parameter; None where this rank has no part of it."""
        return Place(parameter, 0, parameter.numel(), tuple(parameter.shape))

    def range(self, parameter: nn.Parameter) -> tuple[int, int]:
        """First and behind the last element of this rank's part, in the flattened parameter; equal: it has none."""
        return 0, parameter.numel()

    def weight(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The part of the weight, in the optimizer's precision."""
        place = self.place(parameter)
        return None if place is None else place.of(place.tensor)

    def moments(self, parameter: nn.Parameter) -> ParameterState:
        """The parts of the moments, and of what else there is for each element."""
        place = self.place(parameter)
        if place is None:
            return ParameterState()
        if self._states is None:
            self._states = StateReader(self.optimizer)
        state = self._states.of(place.tensor)
        parts = ((name, place.of(value)) for name, value in state.tensors.items())
        return evolve(
            state,
            tensors={name: part for name, part in parts if part is not None},
            packed={name: partial(_part, place, name, values) for name, values in state.packed.items()},
        )

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The part of the gradient that is being consumed: averaged, unscaled and clipped.

        While nothing is being updated: what the backward left, neither unscaled nor clipped; None where that is
        nothing.
        """
        if not self._updating:
            return self.averaged(parameter)
        place = self.place(parameter)
        return None if place is None or id(place.tensor) not in self._updating else place.of(place.tensor.grad)

    def averaged(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The part of the averaged gradient, before the optimizer's step."""
        return None if parameter.grad is None else parameter.grad.detach()

    def local_sum(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """What the optimizer has added up of this rank's own gradients before the backward in flight, where it keeps
        that outside `parameter.grad`."""
        return None


class MasterCopies(Parts):
    """`FP16_UnfusedOptimizer` (ZeRO 0): a copy of each weight in single precision."""

    needs = ("fp16_groups", "fp32_groups", "optimizer")

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        pairs = zip(chain(*optimizer.fp16_groups), chain(*optimizer.fp32_groups), strict=True)
        self._copies = {id(parameter): copy for parameter, copy in pairs}

    def inner_optimizers(self) -> Iterator[Any]:
        yield self.optimizer.optimizer

    def knows(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._copies

    def place(self, parameter: nn.Parameter) -> Place | None:
        return Place(self._copies[id(parameter)], 0, parameter.numel(), tuple(parameter.shape))


class FlatMasterCopies(Parts):
    """`FP16_Optimizer` (ZeRO 0 with a fused optimizer): one flat copy of each parameter group."""

    needs = ("fp16_groups", "fp32_groups_flat", "optimizer")

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._offsets: dict[int, tuple[int, int]] = {}
        for index, group in enumerate(optimizer.fp16_groups):
            offset = 0
            for parameter in group:
                self._offsets[id(parameter)] = (index, offset)
                offset += parameter.numel()

    def inner_optimizers(self) -> Iterator[Any]:
        yield self.optimizer.optimizer

    def knows(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._offsets

    def place(self, parameter: nn.Parameter) -> Place | None:
        index, offset = self._offsets[id(parameter)]
        return Place(self.optimizer.fp32_groups_flat[index], offset, parameter.numel(), tuple(parameter.shape))


class FlatPartitions(Parts):
    """ZeRO 1 and 2: the parameters of a group lie in one flat tensor, of which each rank has an equal part.

    DeepSpeed's own mapping (`_hp_mapping`) is not used: it takes the parameters in another order than they lie in
    when `round_robin_gradients` is on.
    """

    needs: tuple[str, ...] = (
        "round_robin_bit16_groups",
        "single_partition_of_fp32_groups",
        "real_dp_process_group",
        "params_in_partition",
        "averaged_gradients",
        "optimizer",
    )
    sharded = True

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._offsets: dict[int, tuple[int, int]] = {}
        for group, parameters in enumerate(self.groups()):
            offsets = accumulate((parameter.numel() for parameter in parameters), initial=0)
            if hasattr(optimizer, "round_robin_bit16_offsets"):
                # With gaps between the parameters.
                offsets = optimizer.round_robin_bit16_offsets[group]
            for parameter, offset in zip(parameters, offsets, strict=False):
                self._offsets[id(parameter)] = (group, offset)

    def groups(self) -> list[list[nn.Parameter]]:
        """The parameters of each group in the order in which they lie."""
        return list(self.optimizer.round_robin_bit16_groups)

    def partitions(self) -> list[torch.Tensor]:
        """The rank's part of each group, in single precision."""
        return list(self.optimizer.single_partition_of_fp32_groups)

    def inner_optimizers(self) -> Iterator[Any]:
        yield self.optimizer.optimizer

    def knows(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._offsets

    def range(self, parameter: nn.Parameter) -> tuple[int, int]:
        group, offset = self._offsets[id(parameter)]
        begin = self._begin(group)
        end = begin + self.partitions()[group].numel()
        whole = parameter.numel()
        start = min(max(begin - offset, 0), whole)
        return start, max(start, min(end - offset, whole))

    def place(self, parameter: nn.Parameter) -> Place | None:
        start, stop = self.range(parameter)
        if start == stop:
            return None
        group, offset = self._offsets[id(parameter)]
        return Place(self.partitions()[group], offset + start - self._begin(group), stop - start)

    def _begin(self, group: int) -> int:
        rank = distributed.get_rank(self.optimizer.real_dp_process_group[group])
        return rank * self.partitions()[group].numel()

    def averaged(self, parameter: nn.Parameter) -> torch.Tensor | None:
        group, _ = self._offsets[id(parameter)]
        # On its way to the CPU with offloading, or of an earlier step.
        gradients = None if self.optimizer.cpu_offload else self.optimizer.averaged_gradients.get(group)
        without_padding = (one for one in gradients or () if not getattr(one, "_zero_padding", False))
        for one, gradient in zip(self.optimizer.params_in_partition[group], without_padding, strict=False):
            if one is parameter:
                return gradient.detach().view(-1)
        return None

    def local_sum(self, parameter: nn.Parameter) -> torch.Tensor | None:
        total = getattr(parameter, "grad_accum", None)
        return None if total is None else total.detach().view(parameter.shape)


class AccumulatedPartitions(FlatPartitions):
    """`BF16_Optimizer`: parts as in ZeRO 1, and the sum of the gradients in single precision on every rank."""

    needs = (
        "bf16_groups",
        "fp32_groups_flat_partition",
        "fp32_groups_gradients",
        "fp32_groups_has_gradients",
        "real_dp_process_group",
        "optimizer",
    )

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._indices = {id(one): index for group in self.groups() for index, one in enumerate(group)}

    def groups(self) -> list[list[nn.Parameter]]:
        return list(self.optimizer.bf16_groups)

    def partitions(self) -> list[torch.Tensor]:
        return list(self.optimizer.fp32_groups_flat_partition)

    def averaged(self, parameter: nn.Parameter) -> torch.Tensor | None:
        start, stop = self.range(parameter)
        total = self.local_sum(parameter)
        return None if total is None or start == stop else total.view(-1)[start:stop]

    def local_sum(self, parameter: nn.Parameter) -> torch.Tensor | None:
        group, _ = self._offsets[id(parameter)]
        index = self._indices[id(parameter)]
        if not self.optimizer.fp32_groups_has_gradients[group][index]:
            return None
        total: torch.Tensor = self.optimizer.fp32_groups_gradients[group][index]
        return total.detach().view(parameter.shape)


class PartitionedParameters(Parts):
    """ZeRO 3: the parameters themselves are partitioned, and have no elements outside forward and backward."""

    needs = ("fp16_groups", "fp32_partitioned_groups_flat", "averaged_gradients", "optimizer")
    sharded = True

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._places: dict[int, tuple[int, int, int]] = {}
        for group_index, group in enumerate(optimizer.fp16_groups):
            offset = 0
            for index, parameter in enumerate(group):
                self._places[id(parameter)] = (group_index, index, offset)
                offset += parameter.partition_numel()

    def inner_optimizers(self) -> Iterator[Any]:
        yield self.optimizer.optimizer
        # It updates the sub-groups that are not offloaded, where only a part of them is.
        if getattr(self.optimizer, "backup_optimizer", None) is not None:
            yield self.optimizer.backup_optimizer

    def knows(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._places

    def place(self, parameter: nn.Parameter) -> Place | None:
        group, _, offset = self._places[id(parameter)]
        start, stop = self.range(parameter)
        return Place(self.optimizer.fp32_partitioned_groups_flat[group], offset, stop - start)

    def range(self, parameter: nn.Parameter) -> tuple[int, int]:
        # The last partitions are padded so that all have one size.
        size = parameter.partition_numel()  # type: ignore[attr-defined]
        rank = distributed.get_rank(parameter.ds_process_group)  # type: ignore[attr-defined]
        whole = parameter.ds_numel  # type: ignore[attr-defined]
        return min(rank * size, whole), min((rank + 1) * size, whole)

    def averaged(self, parameter: nn.Parameter) -> torch.Tensor | None:
        group, index, _ = self._places[id(parameter)]
        gradients = self.optimizer.averaged_gradients.get(group)
        if not gradients or getattr(self.optimizer, "offload_optimizer", False):
            return None
        start, stop = self.range(parameter)
        gradient: torch.Tensor = gradients[index]
        return gradient.detach().view(-1)[: stop - start]


KINDS: dict[str, type[Parts]] = {
    "DeepSpeedZeroOptimizer_Stage3": PartitionedParameters,
    "DeepSpeedZeroOptimizer": FlatPartitions,
    "BF16_Optimizer": AccumulatedPartitions,
    "FP16_UnfusedOptimizer": MasterCopies,
    "FP16_Optimizer": FlatMasterCopies,
    "Optimizer": Parts,
}
"""By the name of the optimizer's class or of one that it extends."""
UPDATED_ELSEWHERE = ("ZenFlowZeroOptimizer", "SuperOffloadOptimizer_Stage3")
"""Their step is not one of an inner optimizer in this process and at this time."""


def find_parts(optimizer: Any) -> Parts | None:
    """What reads this optimizer, or None where its kind is not known or has changed."""
    kind = next((kind for name, kind in KINDS.items() if is_a(optimizer, name)), None)
    if kind is None or is_a(optimizer, *UPDATED_ELSEWHERE) or not all(hasattr(optimizer, name) for name in kind.needs):
        return None
    return kind(optimizer)
