"""What has no rows although nothing is wrong is counted apart, and the reasons are what really happened."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from msmon_hooks.coverage import FROZEN, NOT_CALLED, NOT_KEPT
from msmon_stats.features import sign_agreement

from .recorder import Monitored

KINDS = {
    "activations": True,
    "weight_gradients": True,
    "weights": True,
    "moments": True,
    "sign_agreement": sign_agreement,
}


class Model(nn.Module):
    """Modules that are called, and ones that are not, each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.base[1].requires_grad_(False)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 7, bias=False)
        self.frozen_head = nn.Linear(8, 7, bias=False).requires_grad_(False)
        self.dead = nn.Sequential(nn.Linear(8, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.loss(tokens)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        hidden = hidden + self.attention(hidden, hidden, hidden)[0]
        hidden = self.base[1](self.base[0](hidden))
        return (hidden @ (self.head.weight + self.frozen_head.weight).T).square().mean()


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """As in a new process: what compiled code calls, no hook sees, so that nothing could be said of modules."""
    torch._dynamo.utils.counters.clear()


def train(optimizer_type: Any, **options: Any) -> tuple[dict[str, Any], Model]:
    torch.manual_seed(0)
    model = Model()
    optimizer = optimizer_type(model.parameters(), lr=0.01, **options)
    monitored = Monitored(model, optimizer, **KINDS)
    for _ in range(3):
        model.loss(torch.randint(0, 7, (2, 5))).backward()
        optimizer.step()
    monitored.missing()
    document = monitored.coverage.to_dict()
    monitored.close()
    return document, model


def of_kind(document: dict[str, Any], kind: str) -> dict[tuple[str, str], str]:
    return {(e["data_type"], e["name"]): e["reason"] for e in document["apart"] if e["kind"] == kind}


def missing(document: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(e["data_type"], e["name"]): e["reason"] for e in document["missing"]}


def test_modules_that_are_never_called() -> None:
    document, model = train(torch.optim.AdamW)
    uncalled = of_kind(document, NOT_CALLED)
    assert {name: reason.partition(": ")[2] for (_, name), reason in uncalled.items()} == {
        "(root)": "what is in it is",
        "base": "what is in it is",
        "attention.out_proj": "other code uses its parameters, which have gradients",
        "head": "other code uses its parameters, which have gradients",
        "frozen_head": "whether other code uses its parameters, all frozen, cannot be seen",
        "dropout": "it has no parameters",
    }
    assert model.head.weight.grad is not None
    # What nothing uses is an alarm: its parameters have no gradient either.
    assert model.dead[0].weight.grad is None
    alarms = missing(document)
    assert {name: alarms["actv", name] for kind, name in alarms if kind == "actv"} == {
        "dead": "hook did not fire",
        "dead.0": "hook did not fire",
    }
    assert alarms["grad_reduced", "dead.0.weight"] == "no gradient"
    assert document["without_rows"] == {}


def test_frozen_parameters_are_neither_expected_nor_missing() -> None:
    document, model = train(torch.optim.AdamW)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    trained = len(list(model.parameters())) - len(frozen)
    kinds = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq", "other")
    assert of_kind(document, FROZEN) == {(kind, name): "frozen" for kind in kinds for name in frozen}
    assert {document["expected"][kind] for kind in kinds} == {trained}
    assert not {name for _, name in missing(document)} & frozen


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_an_optimizer_does_not_keep(momentum: float) -> None:
    document, model = train(torch.optim.SGD, momentum=momentum)
    stepped = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    reason = "its state has momentum_buffer" if momentum else "nothing of it in SGD.state"
    found = of_kind(document, NOT_KEPT)
    kinds = ("exp_avg", "exp_avg_sq") if momentum else ("exp_avg", "exp_avg_sq", "other")
    assert found.keys() == {(kind, name) for kind in kinds for name in stepped}
    assert all(reason in why for why in found.values())
    # A parameter without a gradient may yet have a state.
    alarms = missing(document)
    assert {name for kind, name in alarms if kind == "exp_avg"} == {"dead.0.weight", "dead.0.bias"}


def test_beside_compiled_code_nothing_is_claimed() -> None:
    """Hooks of what a compiled function calls may not fire."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    base = torch.compile(lambda hidden: model.base[0](hidden), backend="eager")
    with Monitored(model, optimizer, activations=True) as monitored:
        (model.loss(torch.randint(0, 7, (2, 5))) + base(torch.ones(2, 8)).sum()).backward()
        optimizer.step()
        assert monitored.coverage.to_dict()["apart"] == []


def test_a_module_that_is_called_later_has_rows() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with Monitored(model, optimizer, activations=True) as monitored:
        for step in range(2):
            loss = model.loss(torch.randint(0, 7, (2, 5)))
            (loss + model.head(torch.ones(8)).sum() * step).backward()
            monitored.coverage.saw("actv", [] if step == 0 else ["head.output"])
            optimizer.step()
        optimizer.zero_grad()
        assert ("actv", "head") not in of_kind(monitored.coverage.to_dict(), NOT_CALLED)


def test_a_target_that_is_never_called_is_a_data_type_without_rows() -> None:
    from msmon_hooks import Sides, Targets

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    targets = Targets({"attention.out_proj": Sides(), "embedding": Sides()})
    for wanted, found in ((targets, {}), (Targets({"attention.out_proj": Sides()}), {"actv"})):
        with Monitored(model, optimizer, activations=True, targets=wanted) as monitored:
            model.loss(torch.randint(0, 7, (2, 5))).backward()
            optimizer.step()
            monitored.missing()
            assert monitored.coverage.to_dict()["without_rows"].keys() == set(found)
