"""An observer that keeps what it is told, with the norm of every tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from msmon_hooks import Clock, Coverage, Request, StepEnd, TensorRef
from msmon_hooks.attachment import Attachment
from msmon_hooks.torch import attach


class Recorder:
    """Rows of all steps: ``(data type, name, step, micro-step)`` to the norm (of scaled values: unscaled).

    The names of further model chunks have the prefix ``1:``.
    """

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.values: list[list[float]] = []
        self.step = 0
        self.rows: dict[tuple[str, str, int, int | None], float] = {}
        self.refs: dict[tuple[str, str, int, int | None], TensorRef] = {}
        self.times: Counter[tuple[str, str, int, int | None]] = Counter()
        """How often each row was recorded."""
        self.events: list[StepEnd] = []

    def measure(self, tensors: Sequence[torch.Tensor], scale: Any = None) -> list[int]:
        handles = []
        for tensor in tensors:
            if tensor.is_nested:
                handles.append(-1)
                continue
            with torch.no_grad():
                wide = (tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()).double()
                self.norms.append(float(wide.norm() / (1.0 if scale is None else scale)))
            self.values.append([])
            handles.append(len(self.norms) - 1)
        return handles

    def put(self, values: torch.Tensor) -> int:
        self.norms.append(float("nan"))
        self.values.append(values.detach().double().reshape(-1).tolist())
        return len(self.norms) - 1

    def record(self, refs: Sequence[TensorRef], handles: Sequence[int]) -> None:
        assert len(refs) == len(handles)
        for ref, handle in zip(refs, handles, strict=True):
            name = f"{ref.vpp_stage}:{ref.name}" if ref.vpp_stage else ref.name
            key = (ref.data_type, name, self.step, ref.micro_step)
            self.times[key] += 1
            self.rows[key] = self.norms[handle] if handle >= 0 else float("nan")
            self.refs[key] = ref

    def discard(self) -> None:
        kept = {key for key in self.rows if key[2] < self.step}
        for found in (self.rows, self.refs, self.times):
            for key in [key for key in found if key not in kept]:
                del found[key]

    def step_end(self, event: StepEnd) -> None:
        assert event.step == self.step
        self.events.append(event)
        if event.first_micro_step:
            for found in (self.rows, self.refs, self.times):
                own = {key: found.pop(key) for key in [key for key in found if key[2] == event.step]}
                for (data_type, name, step, micro_step), value in own.items():
                    moved = None if micro_step is None else micro_step - event.first_micro_step
                    if moved is None or moved >= 0:
                        found[data_type, name, step, moved] = value
        self.step += 1

    def names(self, data_type: str, step: int = 0, micro_step: int | None = None) -> list[str]:
        """Names of the rows of a data type, in the documented order."""
        found = [
            (ref.order, name)
            for (kind, name, at, micro), ref in self.refs.items()
            if (kind, at, micro) == (data_type, step, micro_step)
        ]
        return [name for _, name in sorted(found)]

    def doubled(self) -> list[tuple[str, str, int, int | None]]:
        """Rows that were recorded more than once."""
        return [key for key, times in self.times.items() if times > 1]


class Monitored:
    """A recorder on a model, with everything that belongs to it."""

    def __init__(self, models: Any, optimizer: Any, *, clock: Clock | None = None, **request: Any) -> None:
        self.recorder = Recorder()
        self.coverage = Coverage()
        self.clock = clock or Clock()
        self.recorder.step = self.clock.step
        models = models if isinstance(models, list) else [models]
        asked = Request(**request) if request else None
        self.attachment: Attachment = attach(models, optimizer, asked, self.clock, self.recorder, self.coverage)

    def missing(self) -> dict[tuple[str, str], str]:
        """What coverage says is missing or counts apart, with the reason."""
        for data_type, name, _, _ in self.recorder.rows:
            self.coverage.saw(data_type, [name])
        document = self.coverage.to_dict()
        return {(one["data_type"], one["name"]): one["reason"] for one in (*document["missing"], *document["apart"])}

    @property
    def notes(self) -> list[str]:
        notes: list[str] = self.coverage.to_dict()["notes"]
        return notes

    def close(self) -> None:
        self.parameters = [entry["name"] for entry in self.attachment.describe()]
        self.attachment.close()

    def __enter__(self) -> Monitored:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
