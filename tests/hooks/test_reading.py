"""Reading a model never runs anything of it: no property, no parametrization."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from msmon_hooks import Feature
from msmon_stats import features

from .recorder import Monitored

LINEAR = {"linear_hook": Feature(modules=(), compute=features.linear_features)}
EVERYTHING = {
    "weight_gradients": True,
    "weights": True,
    "moments": True,
    "activations": True,
    "activation_gradients": True,
    "sign_agreement": features.sign_agreement,
    "l2_features": LINEAR,
}


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


class LowRank(nn.Module):
    """One weight of two tensors."""

    def forward(self, left, right):
        return left @ right

    def right_inverse(self, weight):
        return weight[:, :2].clone(), weight[:2].clone()


def registered(parametrization):
    def wrap(module):
        parametrize.register_parametrization(module, "weight", parametrization, unsafe=True)
        return module

    return wrap


def old_weight_norm(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


WRAPPED = {
    "spectral_norm": parametrizations.spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "symmetric": registered(Symmetric()),
    "low rank": registered(LowRank()),
    "old spectral_norm": nn.utils.spectral_norm,
    "old weight_norm": old_weight_norm,
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
}


def train(wrap, used: list[float] | None = None, **request):
    """Losses, final weights, and the recorder; `used` takes the largest singular value of what the forwards used."""
    torch.manual_seed(0)
    model = nn.Sequential(wrap(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitored = Monitored(model, optimizer, **request) if request else None
    losses = []
    for _ in range(3):
        x, first = torch.randn(5, 4), model[0]
        outcome = first(x)
        if used is not None:
            # The map is affine: what it does to the unit vectors is the weight.
            with torch.no_grad(), first_as_it_is(first):
                weight = (first(torch.eye(4)) - first(torch.zeros(1, 4))).T
                used.append(torch.linalg.matrix_norm(weight, 2).item())
        loss = model[2](model[1](outcome)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if monitored is not None:
        assert not [note for note in monitored.notes if "off" in note], monitored.notes
        monitored.close()
    return losses, [parameter.detach() for parameter in model.parameters()], monitored


class first_as_it_is:
    """Evaluation mode: a power iteration makes no step."""

    def __init__(self, module):
        self.module = module

    def __enter__(self):
        self.module.eval()

    def __exit__(self, *exc_info):
        self.module.train()


@pytest.mark.parametrize("way", WRAPPED)
def test_weights_that_are_computed(way):
    """The training stays what it is, bit by bit, and the features are those of the weight that the forward used."""
    used: list[float] = []
    losses, weights, _ = train(WRAPPED[way])
    seen_losses, seen_weights, monitored = train(WRAPPED[way], used, **EVERYTHING)
    assert seen_losses == losses
    assert all(map(torch.equal, seen_weights, weights))
    rows = [key for key in monitored.recorder.rows if key[:2] == ("linear_hook", "0.linear")]
    assert [step for _, _, step, _ in rows] == [0, 1, 2]
    largest = [values[1] for values in monitored.recorder.values if len(values) == 2][::2]
    if way in ("spectral_norm", "weight_norm", "orthogonal", "symmetric", "low rank"):
        assert largest == pytest.approx(used, rel=2e-3)
    for kind in ("param_updated", "grad_reduced", "actv"):
        assert [key for key in monitored.recorder.rows if key[0] == kind and key[2] == 2], kind


class Counts(nn.Module):
    """Whose `weight` does something, and whose unknown attributes raise."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.ones(3, 3))
        self.asked = 0

    @property
    def weight(self):
        self.asked += 1
        return self.kernel

    def __getattr__(self, name):
        if name in ("kernel", "_modules", "_parameters", "_buffers", "training") or name.startswith("_"):
            return super().__getattr__(name)
        raise RuntimeError(f"nobody may ask for {name}")

    def forward(self, x):
        return x @ self.kernel


@pytest.mark.parametrize("named", [False, True])
def test_properties_are_not_asked(named):
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features_of = {
        kind: Feature(modules=("",) if named else (), compute=features.linear_features)
        for kind in ("linear_hook", "moe_router_weight_hook")
    }
    with Monitored(model, optimizer, **{**EVERYTHING, "l2_features": features_of}) as monitored:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        reasons = {reason for (kind, _), reason in monitored.missing().items() if kind.endswith("_hook")}
    assert model.asked == 0
    assert reasons == ({"the module stores no weight of its own"} if named else set())
    assert ("param_updated", "kernel", 0, None) in monitored.recorder.rows


def test_a_parametrization_registered_and_removed_meanwhile():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Monitored(model, optimizer, l2_features=LINEAR) as monitored:
        for change in (
            lambda: None,
            lambda: parametrizations.spectral_norm(model[0]),
            lambda: parametrize.remove_parametrizations(model[0], "weight"),
        ):
            change()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert [key[2] for key in monitored.recorder.rows] == [0, 1, 2]
    largest = [values[1] for values in monitored.recorder.values if values]
    assert largest[1] == pytest.approx(1.0, rel=0.2)
    assert largest[2] == pytest.approx(largest[1], rel=0.2)
    assert largest[0] < 0.9 or largest[0] > 1.1
