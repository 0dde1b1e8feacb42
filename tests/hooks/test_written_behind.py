"""Rows say what is consumed, also where the program writes to tensors in ways that leave no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .recorder import Monitored


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def by_data(gradient: torch.Tensor) -> None:
    gradient.data.mul_(0.25)


def by_numpy(gradient: torch.Tensor) -> None:
    gradient.numpy()[...] *= 0.25


def one_element(gradient: torch.Tensor) -> None:
    gradient.detach().numpy().reshape(-1)[-1] = 100.0


def by_foreach(gradient: torch.Tensor) -> None:
    with torch.inference_mode():
        torch._foreach_mul_([gradient.data], 0.25)


def in_place(gradient: torch.Tensor) -> None:
    gradient.mul_(0.25)


@pytest.mark.parametrize("write", [by_data, by_numpy, one_element, by_foreach, in_place])
def test_a_gradient_that_is_written_behind_autograds_back(write):
    """Clipping through `.data`, by numpy, by a kernel: autograd's version counter does not move."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, weight_gradients=True) as monitored:
        for step in range(2):
            model(torch.randn(5, 4)).pow(2).mean().backward()
            before = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
            for parameter in model.parameters():
                write(parameter.grad)
            consumed = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
            optimizer.step()
            optimizer.zero_grad()
            for name, norm in consumed.items():
                assert monitored.recorder.rows["grad_unreduced", name, step, None] == pytest.approx(before[name])
                assert monitored.recorder.rows["grad_reduced", name, step, None] == pytest.approx(norm), name


class Writes(nn.Module):
    """A kernel between two modules writes into what the first returned."""

    def __init__(self, write):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.write = write

    def forward(self, x):
        hidden = self.first(x)
        self.write(hidden)
        return self.second(hidden)


@pytest.mark.parametrize("write", [by_data, one_element])
def test_an_activation_that_is_written_behind_autograds_back(write):
    model = Writes(write)
    seen = {}
    model.first.register_forward_hook(lambda module, args, output: seen.update(output=output.norm().item()))
    model.second.register_forward_pre_hook(lambda module, args: seen.update(input=args[0].norm().item()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, activations=True) as monitored:
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    assert seen["input"] != seen["output"]
    assert monitored.recorder.rows["actv", "first.output", 0, 0] == pytest.approx(seen["output"])
    assert monitored.recorder.rows["actv", "second.input", 0, 0] == pytest.approx(seen["input"])
