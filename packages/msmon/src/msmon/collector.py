"""Receives tensors from the hooks: statistics stay on the device until the step ends, tensors are not kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from msmon_hooks import CAPTURED, Coverage, StepEnd, TensorRef
from msmon_stats import unsupported_reason

_FIRST_REASON = -2
"""Handles from here downwards stand for reasons why a tensor cannot be measured."""
_REASONS = 64
"""More of them are not told apart: a wrapper's messages may all be different."""


class Transfer(Protocol):
    """A copy to the host that is under way."""

    def matrix(self) -> NDArray[np.float64]:
        """Wait, and return float64 `[handles, 8]`, with fingerprints `[handles, 10]`."""


class Buffer(Protocol):
    """The statistics of one step on the device; see `msmon_stats.torch.PartialBuffer`."""

    fingerprint: bool
    """Whether fingerprints are taken as well."""

    def __init__(self, *, fingerprint: bool) -> None: ...

    def measure(self, tensors: Sequence[Any], eps: Any, scale: Any = None) -> list[int]:
        """Begin to compute the statistics of tensors; one handle each, -1 where there are none."""

    def put(self, values: Any) -> int:
        """Let other numbers ride in the same transfer, as many in a row as it has; the first row's handle."""

    def is_capturing(self) -> bool:
        """Whether what is launched now is captured into a graph, not run."""

    def discard(self) -> None:
        """Empty the buffer; nothing is launched."""

    def transfer(self) -> Transfer:
        """Begin the copy to the host and empty the buffer."""

    def peek(self) -> Transfer:
        """Begin a copy of the rows so far to the host."""


@frozen(kw_only=True, eq=False)
class CollectedStep:
    """Everything that was recorded in one step: names here, numbers on their way."""

    event: StepEnd
    refs: tuple[TensorRef, ...]
    handles: NDArray[np.intp]
    transfer: Transfer


class Collector:
    """The observer that the hooks are given: one row of sufficient statistics per tensor, one transfer a step.

    Several threads may call: autograd has one per device.
    """

    def __init__(
        self,
        buffer: Buffer,
        eps: float,
        on_step: Callable[[CollectedStep], None],
        coverage: Coverage,
        owner: object,
    ) -> None:
        self.eps = eps
        self._coverage = coverage
        self._refused: dict[str, int] = {}
        """Why tensors could not be measured, each reason with the handle that stands for it."""
        self._buffer = buffer
        self._on_step = on_step
        # The hooks hold the collector, so the monitor lives as long as the hooked model, also when the training
        # script lets go of it.
        self._owner = owner
        self._rows: dict[tuple[str, int, str, int | None], tuple[TensorRef, int]] = {}
        self._joined: list[tuple[TensorRef, int]] = []
        self._lock = threading.Lock()

    def measure(self, tensors: Sequence[Any], scale: Any = None) -> list[int]:
        """One handle per tensor; see `msmon_hooks.Observer`."""
        if self._buffer.is_capturing():
            return [self._handle_of(CAPTURED)] * len(tensors)
        handles = self._buffer.measure(tensors, self.eps, scale)
        if -1 not in handles:
            return handles
        return [
            self._handle_of(unsupported_reason(one)) if at == -1 else at
            for one, at in zip(tensors, handles, strict=True)
        ]

    def _handle_of(self, reason: str | None) -> int:
        if reason is None or (reason not in self._refused and len(self._refused) == _REASONS):
            return -1
        return self._refused.setdefault(reason, _FIRST_REASON - len(self._refused))

    def put(self, values: Any) -> int:
        """Handle of numbers that were computed elsewhere; see `msmon_hooks.Observer`."""
        return self._handle_of(CAPTURED) if self._buffer.is_capturing() else self._buffer.put(values)

    def record(self, refs: Sequence[TensorRef], handles: Sequence[int]) -> None:
        """Name what was measured; a later row of the same tensor replaces an earlier one."""
        with self._lock:
            for ref, handle in zip(refs, handles, strict=True):
                if handle <= _FIRST_REASON:
                    reason = next(reason for reason, own in self._refused.items() if own == handle)
                    self._coverage.explain(ref.data_type, ref.name, reason, stage=ref.vpp_stage)
                elif ref.merges:
                    self._joined.append((ref, handle))
                else:
                    self._rows[ref.key] = (ref, handle)

    def so_far(self) -> tuple[list[TensorRef], NDArray[np.intp], NDArray[np.float64]]:
        """What was recorded in the step in flight: names, handles, and the rows that these number. Waits for the
        device."""
        with self._lock:
            rows = [*self._rows.values(), *self._joined]
            transfer = self._buffer.peek()
        handles = np.fromiter((handle for _, handle in rows), np.intp, len(rows))
        return [ref for ref, _ in rows], handles, transfer.matrix()

    def measure_apart(self, tensors: Sequence[Any], scale: Any) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Handles and rows of tensors that are no part of the step's record. Waits for the device."""
        buffer = type(self._buffer)(fingerprint=self._buffer.fingerprint)
        handles = buffer.measure(tensors, self.eps, scale)
        return np.array(handles, np.intp), buffer.transfer().matrix()

    def discard(self) -> None:
        """Forget the step in flight; see `msmon_hooks.Observer`."""
        with self._lock:
            self._rows, self._joined = {}, []
            if self._buffer.is_capturing():
                self._buffer.discard()
            else:
                self._buffer.transfer()

    def step_end(self, event: StepEnd) -> None:
        """Hand over a sampled step."""
        if not event.sampled:
            return
        if self._buffer.is_capturing():
            # Nothing has run, and nothing may be copied.
            self.discard()
            return
        with self._lock:
            rows, self._rows, self._joined = [*self._rows.values(), *self._joined], {}, []
        if first := event.first_micro_step:
            counted = ((ref.counted_from(first), handle) for ref, handle in rows)
            rows = [(ref, handle) for ref, handle in counted if ref is not None]
        refs, handles = zip(*rows, strict=True) if rows else ((), ())
        self._on_step(
            CollectedStep(
                event=event,
                refs=refs,
                handles=np.array(handles, np.intp),
                transfer=self._buffer.transfer(),
            )
        )


class NoObserver:
    """Takes nothing: for a rank that is not monitored but ends together with the others."""

    def measure(self, tensors: Sequence[Any], scale: Any = None) -> list[int]:
        """No handles."""
        return [-1] * len(tensors)

    def put(self, values: Any) -> int:
        """No handle."""
        return -1

    def record(self, refs: Sequence[TensorRef], handles: Sequence[int]) -> None:
        """Nothing to do."""

    def discard(self) -> None:
        """Nothing to do."""

    def step_end(self, event: StepEnd) -> None:
        """Nothing to do."""
