"""Whatever torch or a module calls of ours may fail; who called it never sees that, and the training is the same."""

from __future__ import annotations

import importlib
import logging
import pkgutil

import pytest
import torch
from torch import nn

import msmon_hooks.torch
from msmon_hooks import Feature
from msmon_hooks.call_hooks import CallHook
from msmon_hooks.hooks import Hook
from msmon_hooks.torch.loss_scale import LossScale

from .recorder import Monitored


def hook_classes() -> dict[str, type[Hook]]:
    """All of them by module and name, without those that only hand a call on to another."""
    for info in pkgutil.walk_packages(msmon_hooks.torch.__path__, "msmon_hooks.torch."):
        importlib.import_module(info.name)
    found, waiting = {}, [Hook]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if "fire" in vars(kind) and kind not in (Hook, CallHook) and "mindspore" not in kind.__module__:
            found[f"{kind.__module__.removeprefix('msmon_hooks.')}.{kind.__name__}"] = kind
    return found


# Of engines that are not trained here; the rest of what they do is that of `Hook`.
OF_ENGINES = {"torch.grads.deepspeed", "torch.grads.megatron", "torch.grads.fsdp1"}
AT_THE_END = {"attachment._Closes"}


class Attention(nn.Module):
    def forward(self, query, key):
        return query + key


class Router(nn.Module):
    """Has its logits from a layer inside, and returns other things."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)

    def forward(self, x):
        return self.gate(x).topk(2)


class GatingRouter(nn.Linear):
    """As Megatron's routers."""

    def gating(self, x):
        return nn.functional.linear(x, self.weight, self.bias)

    def routing(self, logits):
        return logits.softmax(-1)

    def forward(self, x):
        return self.routing(self.gating(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.core, self.head = nn.Linear(4, 4), Attention(), nn.Linear(4, 2)
        self.router, self.gating = Router(), GatingRouter(4, 3)
        self.normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.lazy = nn.LazyLinear(4)

    def forward(self, x):
        hidden = self.normed(self.lazy(self.fc(x)))
        weights = self.router(hidden)[0].sum() + self.gating(hidden)[..., 0].sum()
        return self.head(self.core(hidden, hidden)) * weights


def trained(*, watch: bool) -> tuple[list[float], Monitored | None]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitored = None
    if watch:
        features = {
            "attention_hook": ("core",),
            "moe_router_logit_hook": ("core", "router", "gating"),
            "linear_hook": ("normed",),
        }
        monitored = Monitored(
            model,
            optimizer,
            weight_gradients=True,
            moments=True,
            weights=True,
            activations=True,
            activation_gradients=True,
            on_structure=lambda document: None,
            on_stacks=lambda stacks: None,
            inside_compiled="stored",
            l2_features={
                kind: Feature(modules=modules, compute=lambda *tensors: torch.ones(2))
                for kind, modules in features.items()
            },
        )
    losses = []
    for _ in range(3):
        loss = model(torch.randn(5, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
        model.eval()
        model(torch.randn(5, 4)).sum().backward()
        optimizer.zero_grad()
        model.train()
    if monitored is not None:
        monitored.close()
    return losses, monitored


@pytest.fixture(scope="module")
def unmonitored():
    return trained(watch=False)[0]


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("name", sorted(hook_classes()))
def test_a_hook_fails(name, unmonitored, caplog, monkeypatch):
    calls = []

    def fire(self, *args, **kwargs):
        calls.append(self)
        raise RuntimeError("broken")

    monkeypatch.setattr(hook_classes()[name], "fire", fire)
    losses, monitored = trained(watch=True)
    assert losses == unmonitored
    if name.rpartition(".")[0] in OF_ENGINES or name in AT_THE_END:
        return
    assert calls, "nothing calls it"
    # Once: the part is off then; without micro-steps activations cannot be named.
    lines = [line for line in errors(caplog) if "it needs micro-steps" not in line]
    assert len(lines) == 1
    assert "RuntimeError: broken" in lines[0]
    assert monitored.clock.step == 3


@pytest.mark.parametrize("method", ["scaled_by", "steps_of"])
def test_what_watches_a_scaler_fails(method, unmonitored, caplog, monkeypatch):
    def broken(self, *args):
        raise RuntimeError("broken")

    monkeypatch.setattr(LossScale, method, broken)
    assert trained(watch=True)[0] == unmonitored
    (line,) = errors(caplog)
    assert line.startswith("monitoring of scaled losses is switched off")
