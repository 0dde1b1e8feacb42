"""Looks at a training by torch's own means, and says whether what the monitor wrote of it is so."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

CONFIG = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "forward_only": True,
    "all_xy": True,
    "ops": ["norm", "mean"],
    "ndigits": 12,
    "step_count_per_record": 100,
}


Key = tuple[str, str, int, int | None]
"""Data type, name, step, micro-step."""


@frozen(kw_only=True)
class Outcome:
    """What must be the same with and without a monitor."""

    losses: list[float]
    weights: dict[str, bytes]


def outcome(losses: Iterable[float], model: nn.Module) -> Outcome:
    """The weights as they are now."""
    parts = {name: _local(parameter.detach()).reshape(-1) for name, parameter in model.named_parameters()}
    bits = {name: part.view(torch.uint8).numpy().tobytes() for name, part in parts.items()}
    return Outcome(losses=list(losses), weights=bits)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's part of a DTensor."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


class Probe:
    """One parameter's gradient and moment and one module's output, step by step, and what else there was.

    The gradient is that of the end of the optimizer's step: the update has consumed it, whatever computed it.

    Args:
        parameter: by its name in the model that is watched.
        module: likewise; None: no output is looked at.
        last: of a step's forwards only the last is one of the training.
    """

    def __init__(self, parameter: str, module: str | None, *, last: bool = False) -> None:
        self.parameter, self.module = parameter, module
        self.last = last
        self.gradients: list[float] = []
        self.moments: list[float | None] = []
        self.outputs: list[list[float]] = []
        """Means by step and micro-step."""
        self.called: set[str] = set()
        self.with_gradient: set[str] = set()
        self.kept: dict[str, set[str]] = {}
        """Parameter -> keys of its state."""
        self.parameters: dict[str, nn.Parameter] = {}
        self._now: list[float] = []
        self._handles: list[Any] = []

    def watch(self, model: nn.Module, *, hooks: bool = True) -> None:
        """Look at this model. `hooks`: whether modules are hooked, which a compiled model is not."""
        self.parameters = dict(model.named_parameters())
        for name, module in model.named_modules() if hooks else ():
            self._handles.append(module.register_forward_hook(partial(self._called, name)))
        self._handles.append(register_optimizer_step_pre_hook(self._before))
        self._handles.append(register_optimizer_step_post_hook(self._after))

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _called(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and module.training:
            self.called.add(name)
            if name == self.module:
                output = output[0] if isinstance(output, tuple) else output
                self._now.append(float(output.detach().double().mean()))

    def _updates(self, optimizer: Optimizer) -> bool:
        wanted = self.parameters[self.parameter]
        # What has others inside has all parameters, too.
        outer = any(hasattr(optimizer, name) for name in ("optimizers", "base_optimizer", "optim"))
        groups = [] if outer else optimizer.param_groups
        return any(one is wanted for group in groups for one in group["params"])

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._updates(optimizer):
            state = optimizer.state.get(self.parameters[self.parameter]) or {}
            self.moments.append(norm(state["exp_avg"]) if "exp_avg" in state else None)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # An optimizer that steps in a backward is one of many.
        self.with_gradient |= {name for name, one in self.parameters.items() if one.grad is not None}
        if not self._updates(optimizer):
            return
        self.kept |= {n: set(optimizer.state[p]) for n, p in self.parameters.items() if p in optimizer.state}
        gradient = self.parameters[self.parameter].grad
        assert gradient is not None
        self.gradients.append(norm(gradient))
        self.outputs.append(self._now[-1:] if self.last else self._now)
        self._now = []


def norm(tensor: torch.Tensor) -> float:
    """In double precision."""
    return float(_local(tensor.detach()).double().norm())


@frozen(kw_only=True)
class Verdict:
    """The line of a way to train in the table; each column is empty where it holds, else says what does not."""

    losses: str
    rows: str
    steps: str
    coverage: str

    @property
    def holds(self) -> bool:
        return not (self.losses or self.rows or self.steps or self.coverage)


def judge(
    output_dir: Path,
    probe: Probe,
    plain: Outcome,
    monitored: Outcome,
    *,
    first_step: int = 0,
    rank: int = 0,
    output: str | None = None,
    chunks: bool = False,
    unreduced: float | None = None,
    allowed: Callable[[dict[str, str]], bool] = lambda entry: False,
) -> Verdict:
    """Compare what the monitor wrote with what the probe saw in the training without it.

    Args:
        first_step: number of the first recorded step; the probe's first step has it.
        output: name of the row of the watched output, where it is not `<module>.output`.
        chunks: the model is a list of chunks, and its name of a parameter begins with the number of one.
        unreduced: by what the gradient of the backwards is multiplied until it is consumed; None: nobody can tell.
        allowed: entries of `missing` whose reason the caller knows to be true.
    """
    run_dir = max(output_dir.glob(f"*-rank{rank}-*"), key=lambda path: path.stat().st_mtime_ns)
    rows = read_rows(run_dir, chunks=chunks)
    losses = "" if (monitored.losses, monitored.weights) == (plain.losses, plain.weights) else "differ"
    assert plain.losses
    named = output or f"{probe.module}.output"
    expected: dict[Key, tuple[str, float]] = {}
    for at, (gradient, moment, means) in enumerate(zip(probe.gradients, probe.moments, probe.outputs, strict=True)):
        step = first_step + at
        expected["grad_reduced", probe.parameter, step, None] = ("norm", gradient)
        if unreduced is not None:
            expected["grad_unreduced", probe.parameter, step, None] = ("norm", gradient / unreduced)
        if moment is not None:
            expected["exp_avg", probe.parameter, step, None] = ("norm", moment)
        for micro_step, mean in enumerate(means):
            expected["actv", named, step, micro_step] = ("mean", mean)
    assert {kind for kind, *_ in expected} >= {"grad_reduced", *(["actv"] if probe.module else [])}
    wrong = [
        f"{key}: {rows.get(key, {}).get(op)} instead of {value}"
        for key, (op, value) in expected.items()
        if key not in rows or abs(rows[key][op] - value) > 1e-5 * abs(value) + 1e-9
    ]
    again = f"{named.removesuffix('.output')}@"
    wrong += [f"{key} is no output" for key in rows if key not in expected and _is_of(key, named, again)]
    updated = {name for kind, name, _, _ in rows if kind == "grad_reduced"}
    wrong += [f"grad_reduced of {name}" for name in updated ^ probe.with_gradient]
    steps = sorted({step for kind, _, step, _ in rows if kind == "grad_reduced"})
    wanted = list(range(first_step, first_step + len(probe.gradients)))
    coverage = json.loads((run_dir / "coverage.json").read_text())
    entries = [*coverage["missing"], *coverage["apart"]]
    untrue = [str(entry) for entry in entries if not _true(_of_chunks(entry) if chunks else entry, probe, allowed)]
    return Verdict(
        losses=losses,
        rows="; ".join(wrong[:3]),
        steps="" if steps == wanted else f"{steps} instead of {wanted}",
        coverage="; ".join([*untrue[:3], *coverage["switched_off"], *map(str, coverage["without_rows"].items())]),
    )


def _is_of(key: Key, named: str, again: str) -> bool:
    """Whether a row is one of the watched output: of its first call in a micro-step, or of a further one."""
    kind, name, _, _ = key
    return kind == "actv" and (name == named or (name.startswith(again) and name.endswith(".output")))


def _of_chunks(entry: dict[str, str]) -> dict[str, str]:
    return {**entry, "name": entry["name"].replace(":", ".", 1)}


def read_rows(run_dir: Path, *, chunks: bool = False) -> dict[Key, dict[str, float]]:
    """Data type, name, step and micro-step -> the statistics. `chunks`: names begin with the number of a chunk."""
    found = {}
    for path in run_dir.glob("*_*-*.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                micro_step, stage, name = row.pop("micro_step", None), row.pop("vpp_stage"), row.pop("name")
                key = path.name.rpartition("_")[0], f"{stage}.{name}" if chunks else name, int(row.pop("step"))
                found[(*key, None if micro_step is None else int(micro_step))] = {k: float(v) for k, v in row.items()}
    return found


def _true(entry: dict[str, str], probe: Probe, allowed: Callable[[dict[str, str]], bool]) -> bool:
    """Whether the reason that the coverage gives is what the probe saw."""
    data_type, name, kind, reason = entry["data_type"], entry["name"], entry.get("kind"), entry["reason"]
    parameter = probe.parameters.get(name)
    if kind == "frozen":
        return parameter is not None and not parameter.requires_grad
    if kind == "not kept by the optimizer":
        return name in probe.with_gradient and data_type not in probe.kept.get(name, ())
    if kind == "never called as a module":
        return name.replace("(root)", "") not in probe.called
    if reason == "hook did not fire":
        inside = {one for one in probe.parameters if one.startswith(f"{name}.")}
        return name not in probe.called and bool(inside) and not inside & probe.with_gradient
    if reason in ("no gradient", "nothing of it in AdamW.state"):
        return name not in probe.with_gradient
    return allowed(entry)
