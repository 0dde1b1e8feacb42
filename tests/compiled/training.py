"""A training with compiled graphs, and what is looked at in it."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field
from torch import nn

from msmon_hooks import Clock, Schedule
from tests.compiled.models import LENGTH, MODELS, batch
from tests.hooks.recorder import Monitored

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}


@define
class Trained:
    """What a training has left."""

    losses: list[torch.Tensor]
    weights: dict[str, torch.Tensor]
    graphs: int
    breaks: int
    recompiled: int
    kernels: Counter[str]
    how: Counter[str] = field(factory=Counter)
    """`stored` and `recomputed`: how many tensors."""
    monitored: Monitored | None = field(default=None)

    def equals(self, other: Trained) -> bool:
        """Bit by bit."""
        return all(map(torch.equal, self.losses, other.losses)) and all(
            torch.equal(value, other.weights[name]) for name, value in self.weights.items()
        )

    @property
    def rows(self) -> dict[Any, float]:
        """Of activations and their gradients."""
        assert self.monitored is not None
        return {key: value for key, value in self.monitored.recorder.rows.items() if key[0].startswith("actv")}


@contextlib.contextmanager
def seen_kernels(found: Counter[str]) -> Any:
    """The source of every kernel that inductor writes."""
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.codegen

    def codegen(self: Any) -> Any:
        result = original(self)
        for kernel in re.findall(r"async_compile\.\w+\((.*?)'''\)", result[0].value, re.DOTALL):
            found[re.sub(r"cpp_fused_\w+", "kernel", kernel)] += 1
        return result

    GraphLowering.codegen = codegen  # type: ignore[method-assign]
    try:
        yield
    finally:
        GraphLowering.codegen = original  # type: ignore[method-assign]


@contextlib.contextmanager
def without_caches() -> Any:
    """Compile what is compiled: the caches on disk would hand out the graphs of the last run of these tests."""
    import torch._functorch.config
    import torch._inductor.config

    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield


def make(kind: str, dtype: str, **options: Any) -> nn.Module:
    """A model with its weights."""
    torch.manual_seed(0)
    return MODELS[kind](**options).to(DTYPES[dtype])


def compiled(model: nn.Module, way: str, backend: str, *, fullgraph: bool = True) -> nn.Module:
    """The model, compiled as a whole or block by block."""
    if way == "eager":
        return model
    if way == "blocks":
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile(backend=backend, fullgraph=fullgraph)
        return model
    return torch.compile(model, backend=backend, fullgraph=fullgraph, dynamic=True if way == "dynamic" else None)


def train(
    kind: str,
    dtype: str = "fp32",
    way: str = "plain",
    *,
    inside: str | None = None,
    backend: str = "inductor",
    steps: int = 4,
    schedule: Schedule | None = None,
    fullgraph: bool = True,
    micro_steps: int = 1,
    model: nn.Module | None = None,
    **request: Any,
) -> Trained:
    """Train.

    Args:
        way: `eager`, `plain`, `blocks`, `dynamic`, `checkpointed`, `dropout`.
        inside: None: without a monitor; else `Request.inside_compiled`.
    """
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    kernels: Counter[str] = Counter()
    options: dict[str, Any] = {"dropout": 0.1} if way == "dropout" else {}
    if way == "checkpointed":
        options = {"checkpointed": True}
    model = model or make(kind, dtype, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitored = None
    if inside is not None:
        clock = Clock(grad_acc_steps=micro_steps, schedule=schedule)
        asked = {"activations": True, "activation_gradients": True, **request}
        monitored = Monitored(model, optimizer, clock=clock, inside_compiled=inside, **asked)
    run = compiled(model, way, backend, fullgraph=fullgraph)
    torch.manual_seed(1)
    losses = []
    # Without the latter torch runs an `nn.LSTM`, and all code around it, as it is.
    with seen_kernels(kernels), without_caches(), torch._dynamo.config.patch(allow_rnn=fullgraph):
        for step in range(steps):
            for micro_step in range(micro_steps):
                length = LENGTH - 4 * (step % 2) if way == "dynamic" else LENGTH
                inputs, wanted = batch(kind, step * micro_steps + micro_step, length=length, dtype=DTYPES[dtype])
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
                    logits = run(inputs)
                loss = F.cross_entropy(logits.float().flatten(0, -2), wanted.flatten())
                loss.backward()
                losses.append(loss.detach().clone())
            optimizer.step()
            optimizer.zero_grad()
    how: Counter[str] = Counter()
    if monitored is not None:
        inside_graphs: Any = monitored.attachment._readers._inside  # type: ignore[union-attr]
        if inside_graphs is not None:
            how.update(inside_graphs.rows.how.values())
        monitored.close()
    return Trained(
        losses=losses,
        weights={name: value.detach().clone() for name, value in model.named_parameters()},
        graphs=counters["stats"].get("unique_graphs", 0),
        breaks=sum(counters["graph_break"].values()),
        recompiled=sum(counters["recompiles"].values()) if "recompiles" in counters else 0,
        kernels=kernels,
        how=how,
        monitored=monitored,
    )


def wrong(seen: Trained, eager: Trained, dtype: str) -> list[Any]:
    """Rows of the first step that are not those of eager mode; what a kernel rounds later, and the order of a sum,
    differ."""
    tolerance = 1e-3 if dtype == "fp32" else 5e-2
    rows, others = seen.rows, eager.rows
    return [
        (key, rows[key], others[key])
        for key in others
        if key[2] == 0 and key in rows and abs(rows[key] - others[key]) > tolerance * abs(others[key]) + 1e-7
    ]
