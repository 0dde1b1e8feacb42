"""Passes through a monitored model that are no forwards of the training: they work as without a monitor, what they
make is the same, and the rows of the training are too."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from msmon_hooks import Feature
from msmon_stats import features

from .recorder import Monitored

X = torch.arange(12.0).reshape(3, 4) / 7


class Act(nn.Module):
    """Of no library, so that `torch.fx` traces through it."""

    def forward(self, x):
        return torch.tanh(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = Act()
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def gradients(model):
    parameters = dict(model.named_parameters())
    return grad(lambda values: functional_call(model, values, (X,)).sum())(parameters)["first.bias"].tolist()


def gradients_by_sample(model):
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    one = grad(lambda values, x: functional_call(model, values, (x,)).sum())
    return vmap(one, in_dims=(None, 0))(parameters, X)["first.bias"].tolist()


def ensemble(model):
    parameters = {name: torch.stack([parameter.detach()] * 2) for name, parameter in model.named_parameters()}
    return vmap(lambda values: functional_call(model, values, (X,)))(parameters).tolist()


def forward_mode(model):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent.tolist()


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)(X).tolist()


def shapes(model):
    mode = FakeTensorMode()
    parameters = {name: mode.from_tensor(value).requires_grad_() for name, value in model.named_parameters()}
    with mode:
        output = functional_call(model, parameters, (torch.ones(3, 4),))
        output.sum().backward()
        return tuple(output.shape)


def shapes_on_meta(model):
    parameters = {name: parameter.to("meta") for name, parameter in model.named_parameters()}
    return tuple(functional_call(model, parameters, (X.to("meta"),)).shape)


def flops(model):
    kept = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with FlopCounterMode(display=False) as counter:
        model(X).sum().backward()
    for parameter, gradient in zip(model.parameters(), kept, strict=True):
        parameter.grad = gradient
    return counter.get_total_flops()


def exported(model):
    return str(torch.export.export(model, (X,)).graph)


WAYS = {
    "jit.script": lambda model: (torch.jit.script(model)(X).tolist(), torch.jit.script(model).code),
    "jit.trace": lambda model: (torch.jit.trace(model, X)(X).tolist(), torch.jit.trace(model, X).code),
    "fx": lambda model: torch.fx.symbolic_trace(model).code,
    "make_fx": lambda model: make_fx(model)(X).code,
    "export": exported,
    "deepcopy": lambda model: copy.deepcopy(model)(X).tolist(),
    "pickle": lambda model: pickle.loads(pickle.dumps(model))(X).tolist(),
    "save": saved_and_loaded,
    "flops": flops,
    "fake": shapes,
    "meta": shapes_on_meta,
    "grad": gradients,
    "grad by sample": gradients_by_sample,
    "ensemble": ensemble,
    "vmap": lambda model: vmap(model)(X).tolist(),
    "jacrev": lambda model: jacrev(model)(X).tolist(),
    "jvp": lambda model: jvp(model, (X,), (X,))[1].tolist(),
    "hessian": lambda model: hessian(lambda x: model(x).pow(2).sum())(X).tolist(),
    "forward mode": forward_mode,
}


def train(way=None, *, monitored=True):
    """What the way has made each time, final weights, and what was recorded."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    request = {
        "weight_gradients": True,
        "weights": True,
        "activations": True,
        "activation_gradients": True,
        "sign_agreement": features.sign_agreement,
        "l2_features": {
            "linear_hook": Feature(modules=(), compute=features.linear_features),
            "moe_router_logit_hook": Feature(modules=("last",), compute=features.router_entropy),
        },
    }
    hooks = Monitored(model, optimizer, **request) if monitored else None
    made = []
    with warnings.catch_warnings():
        # Of torch, about its older ways.
        warnings.simplefilter("ignore")
        for _ in range(3):
            made += [] if way is None else [way(model)]
            loss = model(X).pow(2).mean()
            made += [] if way is None else [way(model)]
            loss.backward()
            made += [] if way is None else [way(model)]
            optimizer.step()
            optimizer.zero_grad()
    if hooks is not None:
        # Numbers of features are no norms: in the order in which they came.
        rows = {key: norm for key, norm in hooks.recorder.rows.items() if "hook" not in key[0]}
        rows |= {"features": [values for values in hooks.recorder.values if values]}
        said = hooks.missing(), hooks.notes
        hooks.close()
        return made, [parameter.detach().tolist() for parameter in model.parameters()], (rows, said)
    return made, [parameter.detach().tolist() for parameter in model.parameters()], None


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_beside_the_training(way):
    made, weights, _ = train(WAYS[way], monitored=False)
    seen, seen_weights, recorded = train(WAYS[way])
    assert seen == made
    assert seen_weights == weights
    _, _, undisturbed = train()
    assert recorded == undisturbed


class Passes(TorchDispatchMode):
    """Looks at every operator and computes it, as selective checkpointing does."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_training_under_another_mode_is_recorded():
    undisturbed = train()
    with Passes():
        assert train() == undisturbed


def test_script_is_itself_again_afterwards():
    code = torch.jit.script.__code__
    model = Net()
    with Monitored(model, torch.optim.SGD(model.parameters(), lr=0.1), activations=True):
        hooks = list(model.first._forward_hooks.values())
        with pytest.raises(Exception, match="Lambda"):
            torch.jit.script(Unscriptable(model))
        assert list(model.first._forward_hooks.values()) == hooks
    assert torch.jit.script.__code__ is code


class Unscriptable(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + (lambda: 1)
