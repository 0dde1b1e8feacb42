"""torch.compile: the compiled graphs stay what they are; rows appear at the entries of compiled regions, and coverage
says which hooks did not fire."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msmon_hooks import Clock

from .recorder import Monitored

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
NOT_FIRED = "hook did not fire"


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


BLOCK = {"input", "output"}
KINDS = ["wrapped", "in place", "blocks wrapped", "blocks in place", "fullgraph"]
ENTRIES = {
    "wrapped": {""},
    "in place": {""},
    "fullgraph": {""},
    "blocks wrapped": {"", "head", "blocks.0", "blocks.1"},
    "blocks in place": {"", "head", "blocks.0", "blocks.1"},
}
"""Modules that run where hooks see them: entries of compiled regions, and what is not compiled."""


def compiled(model: Model, kind: str, backend: str) -> nn.Module:
    if kind == "wrapped":
        return torch.compile(model, backend=backend)
    if kind == "fullgraph":
        return torch.compile(model, backend=backend, fullgraph=True)
    if kind == "in place":
        model.compile(backend=backend)
        return model
    for index, block in enumerate(model.blocks):
        if kind == "blocks wrapped":
            model.blocks[index] = torch.compile(block, backend=backend)
        else:
            block.compile(backend=backend)
    return model


def run(kind: str, *, backend: str = "eager", attach: str | None = None, dtype=torch.float32):
    """Train 4 steps of 2 micro-steps. ``attach``: None, "before" compiling, "after" it, or "later", after two steps."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    torch.manual_seed(0)
    model = Model().to(dtype)
    monitored = None

    def watch(start: int = 0) -> Monitored:
        return Monitored(
            model,
            optimizer,
            clock=Clock(grad_acc_steps=2, start_iteration=start),
            weight_gradients=True,
            each_micro_step=True,
            weights=True,
            activations=True,
            activation_gradients=True,
        )

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if attach == "before":
        monitored = watch()
    model = compiled(model, kind, backend)
    if attach == "after":
        monitored = watch()
    torch.manual_seed(1)
    losses = []
    for step in range(4):
        if attach == "later" and step == 2:
            monitored = watch(2)
        for _ in range(2):
            loss = model(torch.randn(3, 8, dtype=dtype)).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    if monitored is not None:
        monitored.close()
    graphs = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return losses, graphs, monitored


def check(monitored: Monitored, first_step: int, *, entries: set[str]) -> None:
    rows = monitored.recorder.rows
    assert monitored.recorder.doubled() == []
    names = [name for name, _ in Model().named_modules() if name != "blocks"]
    for step in range(first_step, 4):
        for micro_step in range(2):
            seen = {name for kind_, name, *at in rows if kind_ == "actv" and at == [step, micro_step]}
            assert seen == {f"{name}.{side}" for name in entries for side in BLOCK}, (step, micro_step)
            gradients = {name for kind_, name, *at in rows if kind_ == "actv_grad" and at == [step, micro_step]}
            assert {f"{name}.output" for name in entries} <= gradients
            unreduced = [name for kind_, name, *at in rows if kind_ == "grad_unreduced" and at == [step, micro_step]]
            assert sorted(unreduced) == sorted(name for name, _ in Model().named_parameters())
        for kind_ in ("grad_reduced", "param_origin", "param_updated"):
            assert len([key for key in rows if key[0] == kind_ and key[2] == step]) == 14
    missing = {name: reason for (kind_, name), reason in monitored.missing().items() if kind_ == "actv"}
    assert set(missing) == {name or "(root)" for name in names if name not in entries}
    assert all(reason.startswith(NOT_FIRED) for reason in missing.values())
    assert all("torch.compile" in reason for reason in missing.values())


@pytest.mark.parametrize("attach", ["after", "later"])
@pytest.mark.parametrize("kind", KINDS)
def test_attached_to_a_compiled_model(kind, attach):
    losses, graphs, _ = run(kind)
    monitored_losses, monitored_graphs, monitored = run(kind, attach=attach)
    assert monitored_losses == losses
    assert monitored_graphs == graphs
    check(monitored, 2 if attach == "later" else 0, entries=ENTRIES[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_after_attaching(kind):
    """A model that compiles itself is noticed after a step; the wrapper that ``torch.compile`` returns is not known."""
    losses, graphs, _ = run(kind)
    monitored_losses, monitored_graphs, monitored = run(kind, attach="before")
    assert monitored_losses == losses
    assert monitored_graphs == graphs
    rows = monitored.recorder.rows
    for step in range(4):
        for kind_ in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
            names = {key[1] for key in rows if key[0] == kind_ and key[2] == step}
            assert len(names) == 14, (kind_, step)
        unreduced = [(key[1], key[3]) for key in rows if key[0] == "grad_unreduced" and key[2] == step]
        assert len(unreduced) == 28
    fired = {key[1].rpartition(".")[0] for key in rows if key[0] == "actv"}
    names = {name for name, _ in Model().named_modules() if name != "blocks"}
    missing = {name for (kind_, name), reason in monitored.missing().items() if kind_ == "actv" and NOT_FIRED in reason}
    assert missing == {name or "(root)" for name in names - fired}
    assert fired == (set() if kind in ("wrapped", "fullgraph") else ENTRIES[kind])


def test_what_the_compiler_fuses_stays_fused():
    """In bfloat16 a graph break in every module changes the losses."""
    losses, graphs, _ = run("in place", backend="inductor", dtype=torch.bfloat16)
    monitored_losses, monitored_graphs, monitored = run(
        "in place", backend="inductor", attach="after", dtype=torch.bfloat16
    )
    assert monitored_losses == losses
    assert monitored_graphs == graphs
    check(monitored, 0, entries={""})


def test_a_graph_that_breaks_is_seen_once():
    """Where the compiler gives up, modules run as they are, hooks and all."""

    class Breaks(Model):
        def forward(self, x):
            x = self.blocks[0](x)
            torch._dynamo.graph_break()
            return self.head(self.blocks[1](x))

    torch._dynamo.reset()
    model = Breaks()
    model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, activations=True) as monitored:
        model(torch.randn(3, 8)).sum().backward()
        optimizer.step()
    names = monitored.recorder.names("actv", 0, 0)
    assert {".input", ".output"} <= set(names)
    assert not [name for name in names if "@" in name]
    assert monitored.recorder.doubled() == []


def test_a_compiled_optimizer_is_noticed():
    torch._dynamo.reset()
    compiled = []

    def backend(graph, _inputs):
        compiled.extend(node.meta.get("stack_trace") or "" for node in graph.graph.nodes)
        return graph

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend=backend)
    with Monitored(model, optimizer, weight_gradients=True) as monitored:
        for _ in range(3):
            model(torch.randn(3, 8)).pow(2).mean().backward()
            step()
            optimizer.zero_grad()
    assert [event.step for event in monitored.recorder.events] == [0, 1, 2]
    assert len([key for key in monitored.recorder.rows if key[0] == "grad_reduced"]) == 3 * 14
    assert compiled
    assert not [trace for trace in compiled if "msmon_" in trace]
