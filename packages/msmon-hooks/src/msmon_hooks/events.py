"""What the hooks hand out: a frozen description of a tensor, and the observer that receives it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

from attrs import evolve, field, frozen


@frozen(slots=True)
class Shard:
    """Which part of a tensor lies on this rank.

    Example:
        >>> half = Shard((8, 4), (16,), "16:32")
        >>> half.numel, half.local_numel
        (32, 16)
    """

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    local_shape: tuple[int, ...]
    """Shape of the part; it may be flat."""
    part: str
    """Equal on ranks that hold the same part, different where the parts are disjoint. The parts of all ranks make up
    the whole. Flat ranges read `start:stop`; parts of a device mesh `dimension:index/count`."""

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return prod(self.shape)

    @property
    def local_numel(self) -> int:
        """Number of elements of the part; 0 where this rank holds nothing of the tensor."""
        return prod(self.local_shape)


@frozen(slots=True, eq=False)
class TensorRef:
    """Which tensor this is. Holds no tensor.

    Example:
        >>> ref = TensorRef("grad_reduced", "fc1.weight", 0, None, 7, (0,), (8, 4), "torch.float32")
        >>> ref.key
        ('grad_reduced', 0, 'fc1.weight', None)
    """

    data_type: str
    """One of `DATA_TYPES`."""
    name: str
    """Plain name, without wrapper prefixes: `fc1.weight`, `fc1.input`, `rnn.output_1_0`."""
    vpp_stage: int
    """Index of the model chunk (virtual pipeline stage); 0 with a single model."""
    micro_step: int | None
    """Micro-step within the step, or None where a tensor exists once a step."""
    call_id: int
    """Counts up within the step on this rank, in the order of execution."""
    order: tuple[int, ...]
    """Sort key of the tensor's row within its data type."""
    shape: tuple[int, ...]
    """Shape of what was read: of the local part, where the tensor is sharded."""
    dtype: str
    """The framework's own name, for example `torch.bfloat16`."""
    is_input: bool = False
    """Whether it is the input of a module."""
    requires_grad: bool = True
    """Whether the tensor takes part in differentiation when it is read."""
    shard: Shard | None = None
    """The part of the tensor that was read; None: all of it."""
    merges: bool = False
    """Whether records with the same `key` are merged into one row; else the last one stands."""

    key: tuple[str, int, str, int | None] = field(init=False, repr=False)
    """What makes the row unique within a step."""

    @key.default
    def _make_key(self) -> tuple[str, int, str, int | None]:
        return (self.data_type, self.vpp_stage, self.name, self.micro_step)

    def counted_from(self, first: int) -> TensorRef | None:
        """The same with micro-steps counted from this one; None if it belongs to one before.

        Example:
            >>> ref = TensorRef("actv", "fc1.output", 0, 2, 7, (7,), (8, 4), "torch.float32")
            >>> ref.counted_from(1).micro_step, ref.counted_from(3)
            (1, None)
        """
        if first == 0 or self.micro_step is None:
            return self
        return evolve(self, micro_step=self.micro_step - first) if self.micro_step >= first else None


@frozen(slots=True)
class StepEnd:
    """A step of the trainer is over."""

    step: int
    """Number of the step that ended."""
    sampled: bool
    """Whether tensors were recorded in it."""
    skipped: bool = False
    """Whether there was no update: a loss scaler skipped it, or the optimizer raised."""
    last_micro_step: int = 0
    """Index of the last micro-step that began, 0 where none did."""
    skip_handle: int = -1
    """Where only the device knows whether the update was skipped (a fused optimizer under a loss scaler): the handle
    of one number that rides in the step's transfer, greater than 0 if it was. Else -1."""
    first_micro_step: int = 0
    """The number that the first micro-step had while the step was in flight: those before have no rows, since no update
    has used their gradients. See `TensorRef.counted_from`."""


class Observer(Protocol):
    """Receives tensors and their descriptions.

    Reading and naming are two calls, because the input of a module must be read before the module runs (it may
    change the input in place) but is listed when the module has ended. A handle that is never recorded is dropped.
    """

    def measure(self, tensors: Sequence[Any], scale: Any = None) -> list[int]:
        """Read the tensors now, keep none of them, and return one handle each (-1: cannot be read).

        `scale` is a number or a 0-d tensor by which the values were multiplied (loss scaling).
        """

    def put(self, values: Any) -> int:
        """Take numbers that were computed on the device (a tensor of one dimension): the handle of the first 8 of
        them, the next 8 under the next handle, and so on."""

    def record(self, refs: Sequence[TensorRef], handles: Sequence[int]) -> None:
        """Say what was read. A later record with the same `TensorRef.key` replaces an earlier one, or joins it
        where `TensorRef.merges` says so."""

    def discard(self) -> None:
        """Forget what was measured and recorded in the step in flight: nothing more of it will come."""

    def step_end(self, event: StepEnd) -> None:
        """All tensors of the step have been recorded."""
