"""What people do around compiled graphs: accumulate, checkpoint, tie, adapt, compile functions, break graphs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.compiled.models import GPT, batch
from tests.compiled.training import compiled, train, wrong
from tests.hooks.recorder import Monitored

WHOLE = bool(os.environ.get("MSMON_WHOLE_TABLE"))
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")


class Reentrant(GPT):
    """A checkpoint of the first kind around each block: it keeps no graph of the first run."""

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(self.norm(x))


class Stem(GPT):
    def forward(self, tokens):
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1]))


class Head(GPT):
    def forward(self, x):
        return self.head(self.norm(x))


class Broken(nn.Module):
    """With a graph break between the parts."""

    def __init__(self):
        super().__init__()
        self.stem, self.tail = Stem(), Head()
        self.blocks = GPT().blocks

    def forward(self, tokens):
        x = self.stem(tokens)
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return self.tail(x)


class Twice(GPT):
    """The same block twice, compiled alone."""

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks[0](self.blocks[0](x))))


@dataclass
class Hidden:
    state: torch.Tensor
    layers: int


class Pair(NamedTuple):
    first: torch.Tensor
    rest: dict[str, torch.Tensor]


class Bag:
    """No container that anybody knows."""


class Opener(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(32, 32), nn.ReLU(inplace=True)

    def forward(self, hidden, bag):
        out = self.act(self.fc(hidden.state * bag.factor))
        return Pair(out, {"given": hidden.state})


class Objects(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.open, self.head = nn.Embedding(64, 32), Opener(), nn.Linear(32, 64)

    def forward(self, tokens):
        hidden, bag = Hidden(self.token(tokens), 2), Bag()
        bag.factor = hidden.state.exp()
        pair = self.open(hidden, bag)
        return self.head(pair.first + pair.rest["given"])


def model_of(cls, **options):
    torch.manual_seed(0)
    return cls(**options)


CASES = {
    "accumulation": (GPT, "blocks", {"micro_steps": 2}),
    "reentrant": (Reentrant, "blocks", {}),
    "around blocks": (lambda: GPT(checkpointed=True), "blocks", {}),
    "tied": (lambda: GPT(tied=True), "plain", {}),
    "graph break": (Broken, "plain", {"fullgraph": False}),
    "twice": (Twice, "blocks", {}),
    "outputs alone": (GPT, "blocks", {"activations": False}),
    "activations alone": (GPT, "blocks", {"activation_gradients": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_eager_mode(name):
    cls, way, options = CASES[name]
    training = {key: value for key, value in options.items() if key in ("micro_steps", "fullgraph")}
    base = train("gpt", way=way, backend="aot_eager", model=model_of(cls), **training)
    eager = train("gpt", way="eager", inside="", model=model_of(cls), **options)
    seen = train("gpt", way=way, backend="aot_eager", inside="all", model=model_of(cls), **options)
    assert seen.equals(base)
    assert (seen.graphs, seen.breaks) == (base.graphs, base.breaks)
    assert seen.rows.keys() == eager.rows.keys()
    assert wrong(seen, eager, "fp32") == []
    assert seen.monitored.recorder.doubled() == []


def test_what_runs_outside_of_graphs_is_not_compiled():
    """Torch compiles those of its own modules that have hooks and that code calls which it cannot compile."""
    base, seen, eager = (
        train("lstm", way=way, backend="aot_eager", fullgraph=False, inside=inside, steps=2)
        for way, inside in (("plain", None), ("plain", "all"), ("eager", ""))
    )
    assert seen.equals(base)
    assert seen.graphs == base.graphs == 0
    assert seen.rows == eager.rows


@pytest.mark.parametrize("name", ["reentrant", "twice", "graph break"] if WHOLE else ["reentrant"])
def test_with_inductor(name):
    cls, way, options = CASES[name]
    base = train("gpt", way=way, model=model_of(cls), steps=2, **options)
    eager = train("gpt", way="eager", inside="", model=model_of(cls), steps=2)
    seen = train("gpt", way=way, inside="all", model=model_of(cls), steps=2, **options)
    assert seen.equals(base)
    assert base.kernels - seen.kernels == {}
    assert wrong(seen, eager, "fp32") == []
    assert seen.rows.keys() == eager.rows.keys()
    assert seen.monitored.recorder.doubled() == []


def test_a_compiled_function():
    """Nothing shows where it begins, so modules have their whole names."""
    torch._dynamo.reset()
    model = model_of(GPT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitored = Monitored(model, optimizer, activations=True, activation_gradients=True, inside_compiled="all")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(inputs, wanted):
        return F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten())

    for number in range(2):
        loss(*batch("gpt", number)).backward()
        optimizer.step()
        optimizer.zero_grad()
    eager = train("gpt", way="eager", inside="", steps=2)
    rows = {key for key in monitored.recorder.rows if key[0].startswith("actv")}
    assert rows == eager.rows.keys()
    monitored.close()


def test_compiled_autograd():
    """Of a backward that is compiled as a whole nothing is read, and it is said."""

    def run(inside):
        torch._dynamo.reset()
        model = model_of(GPT)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitored = None
        if inside is not None:
            monitored = Monitored(model, optimizer, activations=True, activation_gradients=True, inside_compiled=inside)
        forward = torch.compile(model, backend="aot_eager", fullgraph=True)
        losses = []
        for number in range(2):
            inputs, wanted = batch("gpt", number)
            loss = F.cross_entropy(forward(inputs).flatten(0, 1), wanted.flatten())
            with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager")):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if monitored is not None:
            monitored.close()
        return losses, monitored

    (base, _), (losses, seen) = run(None), run("all")
    eager = train("gpt", way="eager", inside="", model=model_of(GPT), steps=1)
    assert losses == base
    rows, missing = {key[:2] for key in seen.recorder.rows}, seen.missing()
    assert {key[:2] for key in eager.rows if key[0] == "actv"} <= rows
    lost = {key[:2] for key in eager.rows} - rows
    assert lost
    assert {missing[key] for key in lost} == {
        "inside a compiled graph: the backward is compiled as a whole (compiled autograd)"
    }
    assert seen.coverage.to_dict()["switched_off"] == []


def test_a_compiled_optimizer():
    """All rows of parameters are there beside those inside."""

    def run(way, inside):
        torch._dynamo.reset()
        model = model_of(GPT)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        asked = dict.fromkeys(("weight_gradients", "moments", "weights"), True)
        monitored = None
        if inside is not None:
            asked |= {"activations": True, "activation_gradients": True}
            monitored = Monitored(model, optimizer, inside_compiled=inside, **asked)
        compiled(model, way, "aot_eager")
        step = optimizer.step if way == "eager" else torch.compile(optimizer.step, backend="aot_eager")
        for number in range(3):
            inputs, wanted = batch("gpt", number)
            F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten()).backward()
            step()
            optimizer.zero_grad()
        if monitored is not None:
            monitored.close()
        return [value.detach().clone() for value in model.parameters()], monitored

    base, _ = run("blocks", None)
    _, eager = run("eager", "")
    weights, seen = run("blocks", "all")
    assert all(map(torch.equal, weights, base))
    assert seen.recorder.rows.keys() == eager.recorder.rows.keys()
    assert {"actv_grad", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin"} <= {
        key[0] for key in seen.recorder.rows
    }


def test_lora():
    peft = pytest.importorskip("peft")

    def adapted():
        model = model_of(GPT)
        return peft.get_peft_model(model, peft.LoraConfig(target_modules=["qkv", "up"], r=4))

    def run(way, inside):
        torch._dynamo.reset()
        model = adapted()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        monitored = None
        if inside is not None:
            monitored = Monitored(model, optimizer, activations=True, activation_gradients=True, inside_compiled=inside)
        if way == "blocks":
            compiled(model.base_model.model, way, "aot_eager")
        torch.manual_seed(1)
        losses = []
        for number in range(2):
            inputs, wanted = batch("gpt", number)
            loss = F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if monitored is not None:
            monitored.close()
        return losses, monitored

    base, _ = run("blocks", None)
    _, eager = run("eager", "")
    losses, seen = run("blocks", "all")
    assert losses == base
    assert {key for key in seen.recorder.rows if "actv" in key[0]} == {
        key for key in eager.recorder.rows if "actv" in key[0]
    }


def test_objects():
    """Containers of every kind are looked into; of another object it is said that it is not."""
    base = train("gpt", way="plain", backend="aot_eager", model=model_of(Objects), steps=2)
    eager = train("gpt", way="eager", inside="", model=model_of(Objects), steps=2)
    seen = train("gpt", way="plain", backend="aot_eager", inside="all", model=model_of(Objects), steps=2)
    assert seen.equals(base)
    assert (seen.graphs, seen.breaks) == (base.graphs, base.breaks)
    assert wrong(seen, eager, "fp32") == []
    assert {key[1] for key in eager.rows.keys() - seen.rows.keys()} == {"open.input_1_factor"}
    assert {key[1] for key in seen.rows} >= {"open.input_0_state", "open.output_first", "open.output_rest_given"}
    assert any("objects of the class tests.compiled.test_surroundings.Bag" in note for note in seen.monitored.notes)


def test_what_has_no_marks_is_said():
    """A tensor that nothing of the graph uses is eliminated."""

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
            self.lost, self.act = nn.Linear(32, 32), nn.Tanh()

        def forward(self, tokens):
            x = self.token(tokens)
            self.act(self.lost(x))
            return self.head(x)

    seen = train("gpt", way="plain", inside="all", steps=1, model=model_of(Unused))
    missing = seen.monitored.missing()
    for name in ("lost.output", "act.input", "act.output"):
        assert missing["actv", name].startswith("inside a compiled graph: the compiler has eliminated it")
    assert ("actv", "head.output", 0, 0) in seen.rows
