"""Models of many kinds: losses, weights and random numbers stay what they were, every row is there, none twice."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from msmon_hooks import Clock

from .cases import CASES, Case, Outcome, train
from .oracle import Expected, expected_rows
from .recorder import Monitored

STEPS, MICRO_STEPS = 2, 2
GRADIENTS = ("grad_unreduced", "grad_reduced")
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHTS = ("param_origin", "param_updated")
MONITORS = {
    "wg": {"weight_gradients": True},
    "mbs": {"weight_gradients": True, "each_micro_step": True},
    "mv": {"moments": True},
    "param": {"weights": True},
    "forward": {"activations": True},
    "backward": {"activation_gradients": True},
    "all": {
        "weight_gradients": True,
        "moments": True,
        "weights": True,
        "activations": True,
        "activation_gradients": True,
    },
}


@pytest.fixture(scope="module")
def table():
    """Prints rows expected and seen of each model and monitor, with ``-s``."""
    cells: dict[str, dict[str, str]] = {}
    yield cells
    width = max(map(len, cells), default=0)
    print("\n" + " " * width + "".join(f"{name:>12}" for name in MONITORS))
    for model, row in cells.items():
        print(f"{model:{width}}" + "".join(f"{row.get(name, ''):>12}" for name in MONITORS))


def run(case: Case, monitor: str) -> tuple[Outcome, Monitored]:
    made: list[Monitored] = []

    def attach(model, optimizer):
        made.append(Monitored(model, optimizer, clock=Clock(grad_acc_steps=MICRO_STEPS), **MONITORS[monitor]))
        return made[0]

    outcome = train(case, steps=STEPS, micro_steps=MICRO_STEPS, attach=attach)
    return outcome, made[0]


def weight_rows(case: Case) -> dict[str, set[tuple[str, str, int, int | None]]]:
    """Rows of parameters that the data types should have, by monitor."""
    torch.manual_seed(0)
    model = case.build().train()
    optimizer = case.optimizer(model.parameters())
    wrapped = type(model).__name__ == "DataParallel"
    torch.manual_seed(1)
    found: dict[str, set] = {name: set() for name in ("wg", "mbs", "mv", "param")}
    momentum = isinstance(optimizer, torch.optim.SGD)
    reached: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient, name=name: reached.append(name))
    for step in range(STEPS):
        for micro_step in range(MICRO_STEPS):
            reached.clear()
            (case.loss(model) / MICRO_STEPS).backward()
            for name in reached:
                plain = name.removeprefix("module.") if wrapped else name
                found["mbs"].add(("grad_unreduced", plain, step, micro_step))
        for name, parameter in model.named_parameters():
            plain = name.removeprefix("module.") if wrapped else name
            if parameter.requires_grad:
                found["param"] |= {(kind, plain, step, None) for kind in ("param_origin", "param_updated")}
            if parameter in optimizer.state:
                if momentum:
                    found["mv"].add(("state", f"{plain}.momentum_buffer", step, None))
                else:
                    found["mv"] |= {(kind, plain, step, None) for kind in MOMENTS}
            if parameter.grad is not None:
                found["wg"] |= {(kind, plain, step, None) for kind in ("grad_unreduced", "grad_reduced")}
                found["mbs"].add(("grad_reduced", plain, step, None))
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("name", CASES)
def test_model(name: str, table: dict[str, dict[str, str]]) -> None:
    case = CASES[name]
    with warnings.catch_warnings(record=True) as before:
        unmonitored = train(case, steps=STEPS, micro_steps=MICRO_STEPS)
    weights = weight_rows(case)
    # The tensors of a checkpointed model are those of the same model without.
    plain = CASES["gpt2"] if "checkpointed" in name else case
    activations = expected_rows(plain, steps=STEPS, micro_steps=MICRO_STEPS)
    expected = {
        **{monitor: dict.fromkeys(rows) for monitor, rows in weights.items()},
        "forward": activations.actv,
        "backward": activations.actv_grad,
    }
    expected["all"] = {
        row: value for key in ("wg", "mv", "param", "forward", "backward") for row, value in expected[key].items()
    }
    for monitor in MONITORS:
        with warnings.catch_warnings(record=True) as during:
            outcome, monitored = run(case, monitor)
        assert {str(one.message) for one in during} <= {str(one.message) for one in before}
        recorder = monitored.recorder
        assert outcome == unmonitored, monitor
        assert set(recorder.rows) == set(expected[monitor]), monitor
        assert recorder.doubled() == [], monitor
        for row, value in expected[monitor].items():
            assert value is None or math.isclose(recorder.rows[row], value, rel_tol=1e-6, abs_tol=1e-12), row
        missing = monitored.missing()
        assert set(missing) == missing_rows(monitored, case, monitor, activations), monitor
        table.setdefault(name, {})[monitor] = f"{len(expected[monitor])}/{len(recorder.rows)}"


def missing_rows(monitored: Monitored, case: Case, monitor: str, activations: Expected) -> set[tuple[str, str]]:
    """What coverage should list: parameters that have no such tensor, modules that were never called, activations
    that no gradient reached."""
    kinds = {"wg": GRADIENTS, "mbs": GRADIENTS, "mv": MOMENTS, "param": WEIGHTS, "all": GRADIENTS + MOMENTS + WEIGHTS}
    found = {(kind, name) for kind in kinds.get(monitor, ()) for name in monitored.parameters}
    found -= {(data_type, name) for data_type, name, _, _ in monitored.recorder.rows}
    if monitor in ("forward", "all"):
        found |= {("actv", name) for name in activations.unused}
    if monitor in ("backward", "all"):
        found |= {("actv_grad", name) for name in activations.unreached}
    if monitor == "backward":
        found |= {("actv_grad", name) for name in activations.unused}
    return found
