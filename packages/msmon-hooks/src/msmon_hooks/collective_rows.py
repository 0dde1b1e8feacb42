"""Rows of the tensors that go through collectives, and which collectives there were in the first step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from msmon_hooks.events import TensorRef
from msmon_hooks.guard import logger
from msmon_hooks.layout import ranks_text
from msmon_hooks.recording import Recording
from msmon_hooks.registrations import Registrations
from msmon_hooks.request import CollectiveRequest

SENT, RECEIVED = "pre", "post"

_FRAMES = 12
"""How many frames of the stack are shown."""


class CollectiveRows:
    """Rows `<function>.pre_<argument>` and `<function>.post_<argument>`; all calls of a step make one row."""

    def __init__(self, recording: Recording, request: CollectiveRequest) -> None:
        self.guard = recording.guards("collectives")
        self._request = request
        self._recording = recording
        self._clock = recording.clock
        self._verdicts: dict[str, bool] = {}
        self._seen: dict[tuple[Any, ...], int] = {}
        """Description of a call -> how often it came in the first step."""
        self._logged = False
        self._used: dict[str, dict[tuple[str, str], None]] = {}
        """Function -> the ranks it was called for, as text, and how they reduce."""
        self._told = 0
        self._order: dict[str, int] = {}

    def attach(self, registrations: Registrations) -> None:
        """Observe every collective that the framework has."""
        raise NotImplementedError

    @property
    def wanted(self) -> bool:
        """Whether the step in flight is recorded."""
        return self._clock.sampled and self.guard.enabled

    def begins(
        self, name: str, group: str, tensors: Iterable[Any], *, ranks: Sequence[int] = (), reduction: str = ""
    ) -> bool:
        """A collective is about to run; returns whether its tensors are to be read.

        Args:
            name: of the function.
            group: describes the group.
            tensors: everything that is sent or filled on this rank.
            ranks: of the group; empty where nobody knows.
            reduction: `sum`, `avg` and so on, where there is one.
        """
        stack = _stack() if self._request.log_only or not self._logged else []
        if not self._wants(stack):
            return False
        self._used.setdefault(name, {})[ranks_text(ranks), reduction] = None
        if not self._logged:
            dtypes = ", ".join(sorted({str(tensor.dtype) for tensor in tensors})) or "no tensor"
            shown = tuple(stack[:_FRAMES]) if self._request.log_only else tuple(stack[:1])
            key = (name, dtypes, group, shown)
            self._seen[key] = self._seen.get(key, 0) + 1
        return not self._request.log_only

    def _wants(self, stack: list[str]) -> bool:
        for line in stack or _stack():
            if line not in self._verdicts:
                self._verdicts[line] = self._request.wants(line)
            if self._verdicts[line]:
                return True
        return False

    def read(self, function: str, side: str, tensors: Mapping[int, Sequence[Any]]) -> None:
        """Read the tensors of one side of a call: position of the argument to its tensors."""
        for argument, values in tensors.items():
            name = f"{function}.{side}_{argument}"
            number = self._clock.next_call_id()
            # Behind everything else that "other" holds, in the order in which they were first seen.
            order = (sys.maxsize, self._order.setdefault(name, len(self._order)))
            refs = [
                TensorRef(
                    data_type="other",
                    name=name,
                    vpp_stage=0,
                    micro_step=None,
                    call_id=number,
                    order=order,
                    shape=tuple(value.shape),
                    dtype=str(value.dtype),
                    merges=True,
                )
                for value in values
            ]
            self._recording.observer.record(refs, self._recording.observer.measure(values))

    def step_ends(self) -> Callable[[], None] | None:
        """After the first step: something to call that says which calls there were."""
        self._tell_groups()
        if self._logged or not self.wanted:
            return None
        self._logged = True
        lines = [f"collectives of step {self._clock.step}: {len(self._seen)} different calls"]
        for (name, dtypes, group, stack), count in self._seen.items():
            lines.append(f"  {name} x{count}, {dtypes}, {group}, from " + "\n      from ".join(stack))
        self._seen.clear()
        return lambda: logger.warning("%s", "\n".join(lines))

    def _tell_groups(self) -> None:
        """Say for which ranks each function is called, when there are new ones."""
        count = sum(map(len, self._used.values()))
        tell = self._recording.request.on_collectives
        if count > self._told and tell is not None:
            self._told = count
            tell(
                {
                    name: [{"ranks": ranks, "reduction": reduction} for ranks, reduction in found]
                    for name, found in self._used.items()
                }
            )


def _stack() -> list[str]:
    """`file[line]` of the callers, innermost first, without the monitor's own and torch's wrappers of functions."""
    lines = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "msmon_hooks" not in name and not name.endswith("c10d_logger.py"):
            lines.append(f"{name}[{frame.f_lineno}]")
        frame = frame.f_back
    return lines
