"""What should be seen, found out in a way of its own: a run with plain hooks, and autograd asked directly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from .cases import Case

Row = tuple[str, str, int, int]
"""Data type, name, step, micro-step."""


class Expected:
    """Activations and their gradients of a run: row to norm; None where only the row is certain."""

    def __init__(self) -> None:
        self.actv: dict[Row, float] = {}
        self.actv_grad: dict[Row, float | None] = {}
        self.unreached: set[str] = set()
        """Tensors that take part in differentiation but get no gradient, by the name of their rows."""
        self.unused: set[str] = set()
        """Modules that are never called, by name."""


def expected_rows(case: Case, *, steps: int = 2, micro_steps: int = 2) -> Expected:
    """Train as `cases.train` does, and see what every module was called with and returned.

    Not for checkpointed models: there, tensors exist twice.
    """
    torch.manual_seed(0)
    model = case.build().train()
    optimizer = case.optimizer(model.parameters())
    expected = Expected()
    plain_inputs: dict[str, bool] = {}
    now = [0, 0]
    calls: Counter[str] = Counter()
    seen: list[tuple[Row, torch.Tensor]] = []
    prefix = "module." if type(model).__name__ == "DataParallel" else ""

    def see(name: str, leaves: list[tuple[Any, torch.Tensor]]) -> None:
        for path, tensor in leaves:
            full = "_".join((name, *path))
            expected.actv[("actv", full, *now)] = norm(tensor)
            if tensor.requires_grad:
                tensor.retain_grad()
                seen.append((("actv_grad", full, *now), tensor))

    open_calls: list[str] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        name = module.msmon_name
        number = calls[name]
        calls[name] += 1
        base = name if number == 0 else f"{name}@{number}"
        open_calls.append(base)
        leaves = flat(args) + flat(kwargs)
        plain = plain_inputs.setdefault(name, len(leaves) == 1 and leaves[0][0] == ("0",))
        if plain and leaves and leaves[0][0] == ("0",):
            leaves[0] = ((), leaves[0][1])
        see(f"{base}.input", leaves)

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        leaves = flat(output)
        if isinstance(output, tuple | list) and len(output) == 1 and len(leaves) == 1 and len(leaves[0][0]) == 1:
            leaves = [((), leaves[0][1])]
        see(f"{open_calls.pop()}.output", leaves)

    names: dict[int, str] = {}
    for name, module in model.named_modules():
        if prefix and name == "":
            continue
        names[id(module)] = (name + ".").removeprefix(prefix).rstrip(".")
        module.msmon_name = names[id(module)]
        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True)
    called: set[str] = set()
    torch.manual_seed(1)
    for now[0] in range(steps):
        for now[1] in range(micro_steps):
            (case.loss(model) / micro_steps).backward()
            for row, tensor in seen:
                gradient = tensor.grad
                expected.unreached.add(row[1])
                if gradient is not None and row[1] not in case.unreadable:
                    # An operation in place moves the retained gradient to the new value.
                    expected.actv_grad[row] = None if case.in_place else norm(gradient)
            for _, tensor in seen:
                if not isinstance(tensor, nn.Parameter):
                    tensor.grad = None
            seen.clear()
            called |= set(calls)
            calls.clear()
        optimizer.step()
        optimizer.zero_grad()
    expected.unreached -= {row[1] for row in expected.actv_grad}
    callable_names = [
        names[id(m)] for m in model.modules() if id(m) in names and type(m).forward is not nn.Module.forward
    ]
    expected.unused = {name for name in callable_names if name not in called}
    return expected


def flat(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Tensors with the path that leads to them."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        items = list(enumerate(value))
    else:
        items = list(value.items()) if isinstance(value, dict) else []
    return [leaf for key, item in items for leaf in flat(item, (*path, str(key)))]


def norm(tensor: torch.Tensor) -> float:
    """Euclidean norm in float64."""
    return float(tensor.detach().double().norm())
