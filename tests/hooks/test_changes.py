"""Models that change while they are trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msmon_hooks import Feature
from msmon_stats import features

from .recorder import Monitored

EVERYTHING = {
    "weight_gradients": True,
    "moments": True,
    "weights": True,
    "activations": True,
    "activation_gradients": True,
}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def one_step(model, optimizer) -> None:
    model(torch.randn(5, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def names(monitored: Monitored, data_type: str, step: int) -> set[str]:
    return {name for kind, name, at, _ in monitored.recorder.rows if (kind, at) == (data_type, step)}


def test_modules_added_replaced_and_moved():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        one_step(model, optimizer)
        replaced = model[2]
        model[2] = nn.Linear(8, 3)
        model.append(nn.Tanh())
        optimizer.add_param_group({"params": list(model[2].parameters())})
        one_step(model, optimizer)
        # The modules behind it get other names.
        model.insert(1, nn.Dropout(0.0))
        one_step(model, optimizer)
        del model[1]
        one_step(model, optimizer)
        assert not replaced._forward_hooks
        assert not replaced._forward_pre_hooks
        for kind in ("actv", "actv_grad"):
            assert {"3.output", "2.output"} <= names(monitored, kind, 1), kind
            assert "4.output" in names(monitored, kind, 2)
            assert names(monitored, kind, 3) == names(monitored, kind, 1)
        for kind in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
            assert names(monitored, kind, 1) == {"0.weight", "0.bias", "2.weight", "2.bias"}
            assert names(monitored, kind, 2) == {"0.weight", "0.bias", "3.weight", "3.bias"}
        assert monitored.recorder.refs["grad_reduced", "2.weight", 1, None].shape == (3, 8)
        assert monitored.recorder.doubled() == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_frozen_and_unfrozen():
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        one_step(model, optimizer)
        reasons = monitored.missing()
        assert reasons["grad_reduced", "0.weight"] == "frozen"
        assert reasons["param_updated", "0.bias"] == "frozen"
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters())})
        model[2].requires_grad_(False)
        one_step(model, optimizer)
        for kind in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
            assert names(monitored, kind, 0) == {"2.weight", "2.bias"}
            assert names(monitored, kind, 1) == {"0.weight", "0.bias"}, kind
        model[2].requires_grad_(True)
        one_step(model, optimizer)
        assert len(names(monitored, "grad_unreduced", 2)) == 4
        assert not [key for key in monitored.missing() if key[0] in ("grad_unreduced", "param_updated")]


def test_frozen_parameters_that_the_optimizer_has():
    """As many scripts do: all parameters go to the optimizer, some of them are frozen."""
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        for _ in range(2):
            one_step(model, optimizer)
        kinds = ("grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated")
        assert {kind for (kind, name), reason in monitored.missing().items() if reason == "frozen"} == set(kinds)
        model[0].weight.requires_grad_(True)
        for _ in range(2):
            one_step(model, optimizer)
        assert monitored.missing() == {}


def test_gradients_that_no_backward_accumulated():
    """As in training by ``torch.autograd.grad``: the program assigns them."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, weight_gradients=True) as monitored:
        loss = model(torch.randn(5, 4)).pow(2).mean()
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            parameter.grad = gradient
        optimizer.step()
    rows = monitored.recorder.rows
    assert names(monitored, "grad_unreduced", 0) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert rows["grad_unreduced", "0.weight", 0, None] == rows["grad_reduced", "0.weight", 0, None]


def test_sparse_gradients():
    """The rows are those of the same training with dense gradients."""
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(10, 3, sparse=sparse)
        optimizer = torch.optim.SparseAdam(model.parameters()) if sparse else torch.optim.Adam(model.parameters())
        with Monitored(model, optimizer, **EVERYTHING) as monitored:
            for _ in range(2):
                model(torch.tensor([1, 1, 2])).pow(2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert monitored.missing() == {}
        found.append({row: value for row, value in monitored.recorder.rows.items() if row[2] == 0 or "grad" in row[0]})
    dense, sparse = found
    assert sparse.keys() == dense.keys()
    for row, value in dense.items():
        assert sparse[row] == pytest.approx(value, rel=1e-2 if row[2] else 1e-6), row


@pytest.mark.parametrize("first_in_the_step", [True, False])
def test_a_call_with_other_parameters_changes_nothing(first_in_the_step):
    """`torch.func.functional_call` puts other tensors into the modules while they run."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    others = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    with Monitored(model, optimizer, **EVERYTHING) as monitored:
        for step in range(3):
            loss = 0.0 if first_in_the_step else model(torch.randn(5, 4)).sum()
            if step == 1:
                torch.func.functional_call(model, others, (torch.randn(5, 4),)).sum().backward()
            loss = loss + model(torch.randn(5, 4)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for step in range(3):
        for kind in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated", *(["state"] * bool(step))):
            found = {name for data_type, name, at, _ in monitored.recorder.rows if (data_type, at) == (kind, step)}
            assert len(found) == 16, (kind, step)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.LazyConv2d(3, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.fc = nn.LazyLinear(5)
        self.head = nn.Linear(5, 2)
        self.unused = nn.LazyLinear(1)

    def forward(self, x):
        return self.head(self.fc(self.norm(self.conv(x)).flatten(1)))


def test_lazy_modules_have_rows_from_the_step_in_which_they_get_their_shapes(caplog):
    torch.manual_seed(0)
    model = Lazy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wanted = {"linear_hook": Feature(modules=(), compute=features.linear_features)}
    with Monitored(model, optimizer, **EVERYTHING, l2_features=wanted) as monitored:
        assert monitored.missing()["grad_reduced", "fc.weight"] == "its lazy module has not run yet, so it has no shape"
        assert [entry["name"] for entry in monitored.attachment.describe()] == ["head.weight", "head.bias"]
        for _ in range(3):
            for _ in range(2):
                model(torch.randn(2, 1, 5, 5)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        trained = {name for name, _ in model.named_parameters() if not name.startswith("unused")}
        for step in range(3):
            for kind in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
                assert names(monitored, kind, step) == trained, (kind, step)
            assert len(names(monitored, "state", step)) == (len(trained) if step else 0)
            assert names(monitored, "linear_hook", step) == {"fc.linear", "head.linear"}
            assert "fc.output" in names(monitored, "actv_grad", step)
        described = [entry["name"] for entry in monitored.attachment.describe()]
        assert set(described) == trained
        lazy = {name for (_, name), reason in monitored.missing().items() if reason.startswith("its lazy module")}
        assert lazy == {"unused.weight", "unused.bias"}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert not any(module._forward_hooks for module in model.modules())
