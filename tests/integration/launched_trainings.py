"""Trainings of many kinds in one program that does not mention msmon; prints a digest of the weights of each."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digest(parameters: Iterable[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()[:16]


class Net(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise(sizes)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(
    call: Callable[[torch.Tensor], torch.Tensor], *optimizers: torch.optim.Optimizer, micro_steps: int = 1
) -> None:
    for step in range(3):
        for micro_step in range(micro_steps):
            call(torch.full((2, 4), 1.0 + step + micro_step)).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def plain() -> nn.Module:
    class Plain(Net): ...

    model = Plain(4, 3, 1)
    with torch.no_grad():
        model(torch.ones(2, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))
    model.train()
    train(model, optimizer)
    return model


def accumulated() -> nn.Module:
    class Accumulated(Net): ...

    model = Accumulated(4, 3, 1)
    train(model, torch.optim.SGD(model.parameters(), 0.01), micro_steps=3)
    return model


def two_optimizers() -> nn.Module:
    class TwoOptimizers(Net): ...

    model = TwoOptimizers(4, 3, 1)
    first, second = model.layers
    train(model, torch.optim.Adam(first.parameters()), torch.optim.SGD(second.parameters(), 0.01))
    return model


def adversaries() -> nn.Module:
    class Generator(Net): ...

    class Critic(Net): ...

    generator, critic = Generator(4, 3, 2), Critic(2, 3, 1)
    first, second = torch.optim.Adam(generator.parameters()), torch.optim.RMSprop(critic.parameters())
    for _ in range(3):
        second.zero_grad()
        critic(generator(torch.ones(2, 4)).detach()).mean().backward()
        second.step()
        first.zero_grad()
        (-critic(generator(torch.ones(2, 4))).mean()).backward()
        first.step()
    return nn.ModuleList([generator, critic])


def in_parts() -> nn.Module:
    class InParts(Net): ...

    model = InParts(4, 3, 1)
    train(lambda x: model.layers[1](model.layers[0](x)), torch.optim.Adam(model.parameters()))
    return model


def state_first() -> nn.Module:
    class StateFirst(Net): ...

    model = StateFirst(4, 3, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    train(model, optimizer)
    return model


def replaced() -> nn.Module:
    class Replaced(Net): ...

    model = Replaced(4, 3, 1)
    torch.optim.SGD(model.parameters(), 0.1)
    kept = torch.optim.SGD(model.parameters(), 0.1)
    train(model, torch.optim.AdamW(model.parameters()))
    return nn.ModuleList([model]) if kept else model


def teacher_and_student() -> nn.Module:
    class Teacher(Net): ...

    class Student(Net): ...

    teacher, student = Teacher(4, 3, 1), Student(4, 3, 1)
    optimizer = torch.optim.AdamW(student.parameters())
    train(lambda x: student(x) - teacher(x).detach(), optimizer)
    return student


def with_workers() -> nn.Module:
    class WithWorkers(Net): ...

    model = WithWorkers(4, 3, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for (x,) in DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2, num_workers=1):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def compiled() -> nn.Module:
    class Compiled(Net): ...

    model = Compiled(4, 3, 1)
    train(torch.compile(model, backend="aot_eager", fullgraph=True), torch.optim.AdamW(model.parameters()))
    return model


def by_closure() -> nn.Module:
    class ByClosure(Net): ...

    model = ByClosure(4, 3, 1)
    optimizer = torch.optim.AdamW(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return model


def in_no_module() -> nn.Module:
    weight = torch.ones(4, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        nn.functional.relu(nn.Identity()(torch.ones(2, 4)) @ weight).mean().backward()
        optimizer.step()
    return nn.ParameterList([weight])


if __name__ == "__main__":
    torch.manual_seed(0)
    for way in (
        plain,
        accumulated,
        two_optimizers,
        adversaries,
        in_parts,
        state_first,
        replaced,
        teacher_and_student,
        with_workers,
        compiled,
        by_closure,
        in_no_module,
    ):
        print(way.__name__, digest(way().parameters()))
    sys.exit(7)
