"""Whether graphs can be looked into with a version of torch that nobody has tried: a small model is compiled to see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from msmon_hooks.clock import Clock
from msmon_hooks.coverage import Coverage
from msmon_hooks.events import StepEnd, TensorRef
from msmon_hooks.request import Request
from msmon_hooks.torch.compiled.interfaces import PROVED

_verdict: list[str] = []


def objection(attach: Callable[..., Any]) -> str:
    """Why it is not done with this version of torch; empty where nothing speaks against it. Tried once a process.

    `attach`: `msmon_hooks.torch.attach`.
    """
    version = torch.__version__.split("+")[0]
    if not _verdict:
        # Not asked again from inside of the trial.
        _verdict.append("")
        if not version.startswith(tuple(f"{one}." for one in PROVED)):
            found = _try(attach)
            _verdict[0] = found and f"torch {version} was not tried, and a small model says: {found}"
    return _verdict[0]


class _Rows:
    """An observer that counts."""

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()

    def measure(self, tensors: Sequence[Any], scale: Any = None) -> list[int]:
        return [-1] * len(tensors)

    def put(self, values: Any) -> int:
        return -1

    def record(self, refs: Sequence[TensorRef], handles: Sequence[int]) -> None:
        self.names.update((ref.data_type, ref.name) for ref in refs)

    def discard(self) -> None:
        pass

    def step_end(self, event: StepEnd) -> None:
        pass


def _try(attach: Callable[..., Any]) -> str:
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
        data = torch.randn(4, 8)
    plain = _train(copy.deepcopy(model), data)
    rows = _Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    request = Request(activations=True, activation_gradients=True, inside_compiled="all")
    hooks = attach([model], optimizer, request, Clock(), rows, Coverage())
    try:
        seen = _train(model, data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        hooks.close()
    if not all(map(torch.equal, plain, seen)):
        return "its gradients are others than without marks"
    missing = {(kind, f"{n}.output") for kind in ("actv", "actv_grad") for n in (0, 3)} - rows.names
    return f"{len(missing)} of 4 rows are missing" if missing else ""


def _train(model: nn.Module, data: torch.Tensor) -> list[torch.Tensor]:
    compiled = torch.compile(model, fullgraph=True)
    with torch.enable_grad():
        loss = compiled(data).pow(2).mean()
        loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
