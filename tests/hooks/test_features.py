"""What is computed of tensors beside their statistics, and what is looked at in the first step only."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from msmon_hooks import Feature, ShortNames, Sides, Targets
from msmon_stats import features

from .cases import CASES, Experts, Sequence, gpt2, llama
from .recorder import Monitored

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
FUSED = pytest.mark.skipif(VERSION < (2, 4), reason="fused optimizers need a GPU before torch 2.4")


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def one_step(model, optimizer, batch=None) -> None:
    model(torch.randn(5, 4) if batch is None else batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


# Agreement of gradient and momentum


def directions(monitored: Monitored, step: int) -> dict[str, float]:
    rows = monitored.recorder.rows
    return {name: value for (kind, name, at, _), value in rows.items() if (kind, at) == ("other", step)}


def test_direction_is_that_of_gradient_and_momentum_before_the_step():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with Monitored(model, optimizer, sign_agreement=features.sign_agreement) as monitored:
        for step in range(3):
            model(torch.randn(5, 4)).pow(2).mean().backward()
            expected = {}
            for name, parameter in model.named_parameters():
                momentum = optimizer.state[parameter].get("exp_avg") if parameter in optimizer.state else None
                signs = 1.0 if momentum is None else (parameter.grad.sign() * momentum.sign()).mean().item()
                expected[name] = (signs + 1) / 2
            optimizer.step()
            optimizer.zero_grad()
            assert directions(monitored, step) == pytest.approx(expected), step
        ref = monitored.recorder.refs["other", "0.weight", 2, None]
        assert (ref.shape, ref.dtype, ref.micro_step) == ((), "torch.float32", None)
        assert list(directions(monitored, 2)) == [name for name, _ in model.named_parameters()]


def test_direction_of_momentum_sgd_and_of_an_optimizer_without():
    model = mlp()
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Monitored(model, momentum, sign_agreement=features.sign_agreement) as monitored:
        one_step(model, momentum, torch.ones(5, 4))
        one_step(model, momentum, torch.ones(5, 4))
        assert set(directions(monitored, 1)) == {name for name, _ in model.named_parameters()}
        assert set(monitored.missing()) == set()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, plain, sign_agreement=features.sign_agreement) as monitored:
        one_step(model, plain)
        one_step(model, plain)
        assert directions(monitored, 1) == {}
        # The rows of the first step, before which no optimizer has a momentum, do not stand for the others.
        assert set(monitored.missing().values()) == {"nothing of it in SGD.state"}
        assert len(monitored.missing()) == 4


def test_direction_of_a_sparse_gradient():
    """Elements that the gradient leaves out count one half."""
    torch.manual_seed(0)
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(10, 3, sparse=sparse)
        optimizer = torch.optim.SparseAdam(model.parameters()) if sparse else torch.optim.Adam(model.parameters())
        with Monitored(model, optimizer, sign_agreement=features.sign_agreement) as monitored:
            for tokens in ([1, 1, 2], [2, 3]):
                model(torch.tensor(tokens)).pow(2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(directions(monitored, 1)["weight"])
    assert found[0] == pytest.approx(found[1])
    assert 0.5 < found[0] < 1


# Histograms of Adam's update


@pytest.mark.parametrize("options", [{}, {"foreach": True}, pytest.param({"fused": True}, marks=FUSED)])
def test_adam_histograms(options):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, betas=(0.8, 0.9), **options)
    edges = (-1.0, 0.0, 1.0)

    def histograms(m, v, **settings):
        seen.append({key: (float(x) if not isinstance(x, tuple) else x) for key, x in settings.items()})
        return features.adam_histograms(m, v, edges, **settings)

    seen: list[dict] = []
    with Monitored(model, optimizer, adam_histograms=histograms) as monitored:
        for _ in range(3):
            one_step(model, optimizer)
    assert [settings["step"] for settings in seen] == [1.0] * 4 + [2.0] * 4
    assert all(settings["betas"] == (0.8, 0.9) and settings["eps"] == 1e-8 for settings in seen)
    counts = [values for values in monitored.recorder.values if values]
    assert len(counts) == 8
    # 0.weight: 32 elements, after one step the ratio is +1 or -1, the update a hair inside of that, or both are 0.
    assert sum(counts[0][:7]) == sum(counts[0][7:]) == 32


def test_decay_rates_on_the_device_are_not_brought_to_the_host():
    model = mlp()
    betas = (torch.tensor(0.8), torch.tensor(0.9))
    try:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05, betas=betas)
    except (TypeError, ValueError):
        pytest.skip("this torch wants numbers")
    seen = []

    def histograms(m, v, **settings):
        seen.extend(settings["betas"])
        return features.adam_histograms(m, v, (-1.0, 0.0, 1.0), **settings)

    with Monitored(model, optimizer, adam_histograms=histograms) as monitored:
        for _ in range(2):
            one_step(model, optimizer)
    assert seen == [*betas] * 4
    assert all(one is other for one, other in zip(seen, betas * 4, strict=True))
    counts = [values for values in monitored.recorder.values if values]
    assert sum(counts[0][:7]) == 32


def test_an_optimizer_that_is_no_adam():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Monitored(model, optimizer, adam_histograms=features.adam_histograms) as monitored:
        for _ in range(2):
            one_step(model, optimizer)
        assert set(monitored.missing().values()) == {"the optimizer has no moments of Adam's kind"}


# L2 features


class Attention(nn.Module):
    """Called with queries, keys and values; heads are in the third dimension."""

    def forward(self, query, key, value=None):
        return query.sum() + key.sum()


class Attends(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.core = Attention()
        self.fc = nn.Linear(4, 4)
        self.call = call

    def forward(self, x):
        return self.call(self.core, self.fc(x))


def attention(query, key):
    return features.attention_features(query, key, layout="s,b,h,d")


@pytest.mark.parametrize("by_keyword", [False, True])
def test_attention_features(by_keyword):
    def call(core, x):
        q = x.reshape(3, 1, 2, 4)
        core(key=q * 2, query=q) if not by_keyword else None
        return core(q, q * 2) if not by_keyword else core(value=None, key=q * 2, query=q)

    model = Attends(call)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = {"attention_hook": Feature(modules=("core",), compute=attention)}
    batch = torch.randn(6, 4)
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        q = model.fc(batch).reshape(3, 1, 2, 4)[:, 0, 0].detach()
        model(batch).backward()
        optimizer.step()
    scores = (q @ (q * 2).T / 2.0).masked_fill(torch.triu(torch.ones(3, 3, dtype=torch.bool), 1), -math.inf)
    p = scores.softmax(-1)
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean()
    keys = [key for key in monitored.recorder.rows if key[0] == "attention_hook"]
    names = ["core.attention"] if by_keyword else ["core.attention", "core@1.attention"]
    assert [key[1:] for key in keys] == [(name, 0, 0) for name in names]
    values = [values for values in monitored.recorder.values if values]
    assert values[-1] == pytest.approx([entropy.item(), p.amax(-1).mean().item()], rel=1e-5)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda core, x: core(x.reshape(3, 2, 4), x.reshape(3, 2, 4)), "query must be 4-D"),
        (lambda core, x: core.forward(x, x) + nn.Identity()(x).sum(), "hook did not fire"),
    ],
)
def test_what_cannot_be_computed_is_said_once(call, reason, caplog):
    model = Attends(call)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = {"attention_hook": Feature(modules=("core",), compute=attention)}
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        for _ in range(2):
            model(torch.randn(6, 4)).backward()
            optimizer.step()
        ((name, found),) = monitored.missing().items()
        assert name == ("attention_hook", "core.attention")
        assert found.startswith(reason)
        assert len(caplog.records) == (reason != "hook did not fire")


def test_one_input_is_not_enough(caplog):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = {"attention_hook": Feature(modules=("0", "nowhere"), compute=attention)}
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        one_step(model, optimizer)
        reason = "the module has 1 tensors, 2 are needed; it has to be called with Q and K of 4 dimensions"
        assert monitored.missing() == {("attention_hook", "0.attention"): reason}
    assert "l2_targets.attention_hook: nothing in the model is called 'nowhere'" in monitored.notes


def test_linear_features_of_every_module_that_qualifies():
    torch.manual_seed(0)
    model = nn.Sequential(Sequence(), nn.LayerNorm(3), nn.Linear(3, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = {"linear_hook": Feature(modules=(), compute=features.linear_features)}
    state = torch.get_rng_state()
    largest = [torch.linalg.matrix_norm(model[0].head.weight.detach(), 2).item()]
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        for _ in range(2):
            model(torch.randint(0, 9, (2, 4))).sum().backward()
            optimizer.step()
            largest.append(torch.linalg.matrix_norm(model[0].head.weight.detach(), 2).item())
    assert [key for key in monitored.recorder.rows if key[2] == 0] == [
        ("linear_hook", "0.head.linear", 0, None),
        ("linear_hook", "2.linear", 0, None),
    ]
    values = [values for values in monitored.recorder.values if values]
    # The weight before the update.
    assert [values[0][1], values[2][1]] == pytest.approx(largest[:2], rel=1e-3)
    torch.set_rng_state(state)


def test_router_features():
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = {
        "moe_router_weight_hook": Feature(modules=("router",), compute=features.router_similarity),
        "moe_router_logit_hook": Feature(modules=("0:router",), compute=features.router_entropy),
    }
    with Monitored(model, optimizer, l2_features=wanted) as monitored:
        batch = torch.randn(3, 8)
        p = model.router(batch).softmax(-1)
        unit = nn.functional.normalize(model.router.weight.detach(), dim=1)
        cosines = (unit @ unit.T)[~torch.eye(6, dtype=torch.bool)].mean().item()
        model(batch).sum().backward()
        optimizer.step()
    rows = [key for key in monitored.recorder.rows if key[0].startswith("moe")]
    assert rows == [
        ("moe_router_logit_hook", "router.moe_router", 0, 0),
        ("moe_router_weight_hook", "router.moe_router", 0, None),
    ] or rows == [
        ("moe_router_logit_hook", "router.moe_router", 0, 0),
        ("moe_router_logit_hook", "router@1.moe_router", 0, 0),
        ("moe_router_weight_hook", "router.moe_router", 0, None),
    ]
    values = [values for values in monitored.recorder.values if values]
    assert values[0] == pytest.approx([-(p * p.log()).sum(-1).mean().item()], rel=1e-5)
    assert values[-1] == pytest.approx([cosines], rel=1e-5)


# The first step


def test_structure_of_the_modules():
    document = {}
    torch.manual_seed(0)
    model = Sequence()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, on_structure=document.update) as monitored:
        for _ in range(2):
            model(torch.randint(0, 9, (2, 5))).sum().backward()
            if not monitored.recorder.events:
                assert document == {}
            optimizer.step()
        assert not model._forward_hooks.values() or len(model._forward_hooks) == 1
    none = "<class 'NoneType'>"
    hidden, out = "size=(2, 5, 6), dtype=torch.float32", "size=(2, 5, 3), dtype=torch.float32"
    assert list(document) == ["0:emb", "0:rnn", "0:head", "0:"]
    assert document["0:rnn"] == {
        "input": {"config": "list[1]", "0": "size=(2, 5, 8), dtype=torch.float32"},
        "output": {"config": "tuple[2]", "0": hidden, "1": "<class 'tuple'>"},
        "input_grad": {"config": "tuple[1]", "0": "size=(2, 5, 8), dtype=torch.float32"},
        "output_grad": {"config": "tuple[2]", "0": hidden, "1": none},
    }
    assert document["0:"] == {
        "input": {"config": "list[1]", "0": "size=(2, 5), dtype=torch.int64"},
        "output": {"config": "tensor", "tensor": out},
        "input_grad": {"config": "tuple[1]", "0": none},
        "output_grad": {"config": "tuple[1]", "0": out},
    }


def test_structure_of_keyword_inputs():
    document = {}
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, on_structure=document.update):
        CASES["gpt2"].loss(model).backward()
        optimizer.step()
    root = document["0:"]["input"]
    assert root == {
        "config": "list[2]",
        "input_ids": "size=(2, 6), dtype=torch.int64",
        "labels": "size=(2, 6), dtype=torch.int64",
    }
    assert document["0:"]["output"]["loss"] == "size=(), dtype=torch.float32"
    assert document["0:"]["output_grad"]["loss"] == "size=(), dtype=torch.float32"


def test_call_stacks():
    stacks = {}
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = Targets({"0": Sides(), "": Sides()})
    with Monitored(model, optimizer, on_stacks=stacks.update, targets=targets) as monitored:
        for _ in range(2):
            one_step(model, optimizer)
        assert not model[0]._forward_pre_hooks
        assert monitored.notes == []
    assert set(stacks) == {"0:0", "0:"}
    lines = stacks["0:0"].splitlines()
    assert lines[0].split(", ")[0].endswith("container.py")
    assert lines[0].rpartition(", in ")[2].startswith("forward: ")
    assert lines[1].endswith(
        "in one_step: model(torch.randn(5, 4) if batch is None else batch).pow(2).mean().backward()"
    )
    assert __file__ in lines[1]
    assert stacks["0:"].splitlines()[0] == lines[1]
    assert not [line for line in lines if "msmon_hooks" in line.split(", line")[0] or "nn/modules/module.py" in line]


# Short names


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["model.layers.0.fc.weight", "model.layers.1.fc.weight"], ["layers.0.fc.weight", "layers.1.fc.weight"]),
        (["a.layers.0.w", "b.layers.0.w", "b.layers.1.w"], ["a.layers.0.w", "b.layers.0.w", "layers.1.w"]),
        (["layers.0.w", "b.layers.0.w"], ["layers.0.w", "b.layers.0.w"]),
        (["b.layers.0.w", "layers.0.w"], ["b.layers.0.w", "layers.0.w"]),
        (["x.layers.0.layers.1.w", "y.embeddings.word.w", "head"], ["layers.1.w", "embeddings.word.w", "head"]),
        (["x.final_norm.w", "x.output.w", "x.norm.w"], ["final_norm.w", "output.w", "norm.w"]),
    ],
)
def test_short_names_stay_unique(names, short):
    made = ShortNames(enabled=True)
    made.learn(0, names)
    assert [made(0, name) for name in names] == short
    assert len(set(short)) == len(names)
    later = ShortNames(enabled=True)
    for name in names:
        later.learn(0, [name])
    found = [later(0, name) for name in names]
    assert len(set(found)) == len(names)
    off = ShortNames(enabled=False)
    off.learn(0, names)
    assert [off(0, name) for name in names] == names


def test_squashed_rows_are_all_there():
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = {"weights": True, "activations": True, "activation_gradients": True, "weight_gradients": True}
    found = []
    for short in (False, True):
        torch.manual_seed(1)
        with Monitored(model, optimizer, short_names=short, **everything) as monitored:
            CASES["llama"].loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            described = monitored.attachment.describe()
        assert monitored.recorder.doubled() == []
        found.append(monitored)
    long, short = found
    assert len(short.recorder.rows) == len(long.recorder.rows)
    assert len(short.missing()) == len(long.missing())
    full = {name for name, _ in model.named_parameters()}
    entries = {entry["name"]: entry["aliases"] for entry in described}
    assert len(entries) == len(full)
    shortened = {name: aliases[0] for name, aliases in entries.items() if name not in full}
    assert shortened
    assert all(alias in full and alias.endswith(name) for name, alias in shortened.items())
