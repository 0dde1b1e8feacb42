"""What every optimizer of torch keeps of a parameter: rows by meaning, as they stand before the step, and reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from attrs import field, frozen
from torch import nn

from msmon_stats import features

from .oracle import norm
from .recorder import Monitored

STEPS = 4
MOMENTS = ("exp_avg", "exp_avg_sq")
BOTH = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words((x.abs() * 3).long() % 6)


@frozen(kw_only=True)
class Kept:
    """An optimizer, and by the keys of its state what its tensors are: a moment, or "state"."""

    make: Callable[[Any], Any]
    tensors: Mapping[str, str] = field(factory=dict)
    build: Callable[[], nn.Module] = mlp


def of(name: str, tensors: Mapping[str, str], **options: Any) -> Kept:
    build = options.pop("build", mlp)
    optimizer = getattr(torch.optim, name, None)
    return Kept(make=lambda p: optimizer(p, lr=0.05, **options), tensors=tensors, build=build)


OPTIMIZERS = {
    "Adadelta": of("Adadelta", {"square_avg": "exp_avg_sq", "acc_delta": "state"}),
    "Adafactor": of(
        "Adafactor",
        {"row_var": "state", "col_var": "state", "variance": "exp_avg_sq"},
    ),
    "Adagrad": of("Adagrad", {"sum": "state"}),
    "Adam": of("Adam", BOTH),
    "Adam, amsgrad, not foreach": of("Adam", {**BOTH, "max_exp_avg_sq": "state"}, amsgrad=True, foreach=False),
    "AdamW": of("AdamW", BOTH),
    "AdamW, foreach": of("AdamW", BOTH, foreach=True),
    "Adamax": of("Adamax", {"exp_avg": "exp_avg", "exp_inf": "state"}),
    "ASGD": of("ASGD", {"ax": "state"}),
    "LBFGS": of("LBFGS", dict.fromkeys(("d", "old_dirs", "old_stps", "prev_flat_grad"), "state")),
    "Muon": of("Muon", {"momentum_buffer": "state"}, build=matrices),
    "NAdam": of("NAdam", BOTH),
    "RAdam": of("RAdam", BOTH),
    "RMSprop": of("RMSprop", {"square_avg": "exp_avg_sq"}),
    "RMSprop, all": of(
        "RMSprop",
        {"square_avg": "exp_avg_sq", "grad_avg": "exp_avg", "momentum_buffer": "state"},
        momentum=0.5,
        centered=True,
    ),
    "Rprop": of("Rprop", {"prev": "state", "step_size": "state"}),
    "SGD": of("SGD", {}),
    "SGD, momentum": of("SGD", {"momentum_buffer": "state"}, momentum=0.9, nesterov=True),
    "SparseAdam": of("SparseAdam", BOTH, build=Words),
}


def known(name: str) -> bool:
    return hasattr(torch.optim, name.partition(",")[0])


def test_every_optimizer_of_torch_is_here():
    subclasses = (one for one in vars(torch.optim).values() if isinstance(one, type))
    names = {one.__name__ for one in subclasses if issubclass(one, torch.optim.Optimizer)} - {"Optimizer"}
    assert names <= {name.partition(",")[0] for name in OPTIMIZERS}


@frozen(kw_only=True)
class Outcome:
    losses: list[float]
    weights: list[bytes]


def train(kept: Kept, attach: Callable[..., Any] | None, before_step: Callable[..., None]) -> Outcome:
    torch.manual_seed(0)
    model = kept.build()
    optimizer = kept.make(model.parameters())
    monitored = None if attach is None else attach(model, optimizer)
    losses = []
    for step in range(STEPS):
        batch = torch.randn(5, 6)

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        before_step(step, model, optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    if monitored is not None:
        monitored.close()
    return Outcome(losses=losses, weights=[p.detach().numpy().tobytes() for p in model.parameters()])


def monitored_training(kept: Kept) -> tuple[Monitored, dict[tuple[str, str, int, None], float], dict[str, Any]]:
    """What was seen, what is in `optimizer.state` before each step by the table above, and the last state by name."""
    expected: dict[tuple[str, str, int, None], float] = {}
    states: dict[str, Any] = {}
    made: list[Monitored] = []

    def attach(model: nn.Module, optimizer: Any) -> Monitored:
        made.append(
            Monitored(
                model,
                optimizer,
                moments=True,
                weight_gradients=True,
                weights=True,
                activations=True,
                activation_gradients=True,
                sign_agreement=features.sign_agreement,
            )
        )
        return made[0]

    def before_step(step: int, model: nn.Module, optimizer: Any) -> None:
        for name, parameter in model.named_parameters():
            # Not a look-up, which would make an entry in the optimizer.
            state = states[name] = dict(optimizer.state.get(parameter, {}))
            for key, kind in kept.tensors.items():
                values = state.get(key)
                entries = enumerate(values) if isinstance(values, list) else [(None, values)]
                for index, tensor in entries:
                    if tensor is not None:
                        row = f"{name}.{key}" if index is None else f"{name}.{key}.{index}"
                        expected[kind, name if kind in MOMENTS else row, step, None] = norm(tensor)

    unmonitored = train(kept, None, lambda *_: None)
    assert train(kept, attach, before_step) == unmonitored
    return made[0], expected, states


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if known(name)])
def test_rows_are_those_of_the_state(name: str) -> None:
    kept = OPTIMIZERS[name]
    monitored, expected, states = monitored_training(kept)
    found = {row: value for row, value in monitored.recorder.rows.items() if row[0] in (*MOMENTS, "state")}
    assert found.keys() == expected.keys()
    assert bool(found) is (name != "SGD")
    for row, value in expected.items():
        assert found[row] == pytest.approx(value, rel=1e-6), row
    reasons = {key: reason for key, reason in monitored.missing().items() if key[0] in MOMENTS}
    has = {key[:2] for key in expected}
    assert reasons.keys() == {(moment, name) for moment in MOMENTS for name in states} - has
    for (moment, parameter), reason in reasons.items():
        keys = [key for key, value in states[parameter].items() if key != "step" and value is not None]
        if moment == "exp_avg_sq" and "row_var" in keys:
            assert reason == "factored: row_var, col_var"
        elif keys:
            more = ", ..." if len(keys) > 8 else ""
            assert reason == f"nothing named {moment}; its state has {', '.join(keys[:8])}{more}"
        else:
            assert reason == f"nothing of it in {name.partition(',')[0]}.state"
