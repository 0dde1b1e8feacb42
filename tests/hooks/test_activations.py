"""Names and values of activations and of their gradients."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from msmon_hooks import Clock, Elements, Sides, Targets

from .recorder import Monitored


def watch(
    model: nn.Module, *, targets: dict[str, Sides] | None = None, all_modules: bool = False, clock=None
) -> Monitored:
    parameters = list(model.parameters()) or [nn.Parameter(torch.ones(1))]
    return Monitored(
        model,
        torch.optim.SGD(parameters, lr=0.0),
        clock=clock,
        activations=True,
        activation_gradients=True,
        targets=Targets(targets or {}, all_modules=all_modules),
    )


@dataclass
class Data:
    first: torch.Tensor
    rest: list
    label: str = "text"


Pair = namedtuple("Pair", ["left", "right"])


class Returns(nn.Module):
    """Returns what ``make`` makes of its input."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x: x * 2, [".output"]),
        (lambda x: (x * 2,), [".output"]),
        (lambda x: [x * 2], [".output"]),
        (lambda x: (x * 2, None), [".output_0"]),
        (lambda x: (None, x * 2), [".output_1"]),
        (lambda x: (x * 2, (x * 3, (x * 4,))), [".output_0", ".output_1_0", ".output_1_1_0"]),
        (lambda x: {"loss": x * 2, "logits": (x * 3, None)}, [".output_loss", ".output_logits_0"]),
        (lambda x: OrderedDict(b=x * 2, a=x * 3), [".output_b", ".output_a"]),
        (lambda x: Data(x * 2, [x * 3, "text", x * 4]), [".output_first", ".output_rest_0", ".output_rest_2"]),
        (lambda x: Pair(x * 2, {"k": x * 3}), [".output_left", ".output_right_k"]),
        (lambda x: {0: x * 2}, [".output_0"]),
        (lambda x: None, []),
        (lambda x: ("text", 3, None), []),
    ],
)
def test_names_of_outputs(make, names):
    model = Returns(make)
    with watch(model) as monitored:
        output = model(torch.ones(3, requires_grad=True))
        assert monitored.recorder.names("actv", 0, 0) == [".input", *names]
        leaves = list(flatten(output))
        if leaves:
            sum(leaf.sum() for leaf in leaves).backward()
        found = set(monitored.recorder.names("actv_grad", 0, 0))
        assert found == ({".input", *names} if leaves else set())


def flatten(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from flatten(item)
    elif isinstance(value, Data):
        yield from flatten([value.first, value.rest])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flatten(item)


class Anything(nn.Module):
    def forward(self, *args, **kwargs):
        return sum(value.sum() for value in flatten([args, kwargs]))


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((1,), {}, ["input"]),
        ((1, 1), {}, ["input_0", "input_1"]),
        ((None, 1), {}, ["input_1"]),
        (((1, 1), 1), {}, ["input_0_0", "input_0_1", "input_1"]),
        ((1,), {"mask": 1}, ["input_0", "input_mask"]),
        ((1,), {"mask": None}, ["input"]),
        ((), {"hidden_states": 1}, ["input_hidden_states"]),
        ((), {"cache": {"k": 1, "v": 1}, "x": 1}, ["input_cache_k", "input_cache_v", "input_x"]),
    ],
)
def test_names_of_inputs(args, kwargs, names):
    def tensors(value):
        if value == 1:
            return torch.ones(2, requires_grad=True)
        if isinstance(value, dict):
            return {key: tensors(item) for key, item in value.items()}
        return tuple(tensors(item) for item in value) if isinstance(value, tuple) else value

    model = nn.Sequential()
    model.register_module("block", Anything())
    model.forward = lambda: model.block(*tensors(args), **tensors(kwargs))
    with watch(model) as monitored:
        model().backward()
        assert monitored.recorder.names("actv", 0, 0) == [
            *(f"block.{name}" for name in names),
            "block.output",
            ".output",
        ]
        order = [*(f"block.{name}" for name in names), "block.output"]
        assert monitored.recorder.names("actv_grad", 0, 0) == [".output", *order]


def test_an_input_keeps_its_name():
    """One tensor at the first call, two later."""
    model = nn.Sequential()
    model.register_module("block", Anything())
    model.forward = lambda *values: model.block(*values)
    ones = torch.ones(2, requires_grad=True)
    with watch(model, clock=Clock(grad_acc_steps=2)) as monitored:
        model(ones)
        model(ones, ones * 2)
        assert "block.input" in monitored.recorder.names("actv", 0, 0)
        assert monitored.recorder.names("actv", 0, 1)[:2] == ["block.input", "block.input_1"]


class Repeated(nn.Module):
    def __init__(self, *, outside: bool = True):
        super().__init__()
        self.fc = nn.Linear(3, 3, bias=False)
        self.outside = outside

    def forward(self, x):
        if self.outside:
            self.fc(x.detach())
        for _ in range(3):
            x = self.fc(x)
        return x


def test_a_module_called_several_times():
    model = Repeated()
    with watch(model, clock=Clock(grad_acc_steps=2)) as monitored:
        for micro_step in range(2):
            model(torch.randn(2, 3)).sum().backward()
            assert monitored.recorder.names("actv", 0, micro_step) == [
                *("fc.input", "fc.output", "fc@1.input", "fc@1.output", "fc@2.input", "fc@2.output"),
                *("fc@3.input", "fc@3.output", ".input", ".output"),
            ]
            # Nothing flows to the first call, and no input of the second needs a gradient.
            assert monitored.recorder.names("actv_grad", 0, micro_step) == [
                *(".output", "fc@3.input", "fc@3.output", "fc@2.input", "fc@2.output", "fc@1.output"),
            ]
        assert monitored.missing() == {("actv_grad", "fc.output"): "no gradient reached it"}


def test_input_is_the_value_before_the_module():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.mul_(10)

    model = nn.Sequential(nn.Identity(), InPlace(), nn.Identity())
    with watch(model) as monitored:
        model(torch.ones(4))
        rows = monitored.recorder.rows
        assert [rows["actv", name, 0, 0] for name in ("0.output", "1.input", "1.output", "2.input")] == [2, 2, 20, 20]
        assert rows["actv", ".input", 0, 0] == 2


class Residual(nn.Module):
    """Shared inputs, residual adds, in-place operations, a branch without gradient, an unused output."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)
        self.split = Returns(lambda x: (x[:, :3], x[:, 3:]))

    def forward(self, x):
        hidden = self.a(x)
        left, right = self.split(hidden)
        x = x + self.act(self.b(hidden))
        x += self.c(torch.cat([left, right.detach()], dim=1))
        return x, hidden.mean()


def test_gradients_are_those_of_autograd():
    """Every ``actv_grad`` against ``torch.autograd.grad`` of the same tensor in an unmonitored forward."""
    torch.manual_seed(0)
    model = Residual()
    batch = torch.randn(4, 6, requires_grad=True)
    with watch(model) as monitored:
        output, _ = model(batch)
        (output.pow(2).sum()).backward()
    found = {name: value for (kind, name, _, _), value in monitored.recorder.rows.items() if kind == "actv_grad"}
    x = batch.detach().clone().requires_grad_()
    hidden = model.a(x)
    left, right = hidden[:, :3], hidden[:, 3:]
    b = model.b(hidden)
    relu = torch.relu(b)
    first = x + relu
    mixed = torch.cat([left, right.detach()], dim=1)
    c = model.c(mixed)
    result = first + c
    tensors = {
        ".input": x,
        "a.input": x,
        "a.output": hidden,
        "split.input": hidden,
        "split.output_0": left,
        "b.input": hidden,
        "b.output": b,
        "act.input": b,
        "act.output": relu,
        "c.input": mixed,
        "c.output": c,
        ".output_0": result,
    }
    gradients = torch.autograd.grad(result.pow(2).sum(), list(tensors.values()))
    assert found.keys() == tensors.keys()
    for name, gradient in zip(tensors, gradients, strict=True):
        assert found[name] == pytest.approx(float(gradient.double().norm()), rel=1e-6), name
    missing = monitored.missing()
    assert missing == {("actv_grad", name): "no gradient reached it" for name in ("split.output_1", ".output_1")}


def test_a_leaf_that_is_used_in_every_micro_step():
    """Each row has the gradient of its own micro-step, and no hook stays on the leaf."""
    model = nn.Linear(3, 1, bias=False)
    prompt = nn.Parameter(torch.ones(1, 3))
    optimizer = torch.optim.SGD([*model.parameters(), prompt], lr=0.0)
    with Monitored(model, optimizer, clock=Clock(grad_acc_steps=3), activation_gradients=True) as monitored:
        for _ in range(2):
            for micro_step in range(3):
                (model(prompt).sum() * (micro_step + 1)).backward()
            optimizer.step()
        rows = monitored.recorder.rows
        unit = rows["actv_grad", ".input", 0, 0]
        for step in range(2):
            assert [rows["actv_grad", ".input", step, micro] for micro in range(3)] == pytest.approx(
                [unit, 2 * unit, 3 * unit]
            )
        assert not prompt._backward_hooks


class Segments(nn.Module):
    """Checkpointed segments in which one module is called twice, in one segment and over several."""

    def __init__(self, reentrant: bool | None):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 4)
        self.reentrant = reentrant

    def twice(self, x):
        return self.fc(torch.tanh(self.fc(x)))

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = self.twice(x) if self.reentrant is None else checkpoint(self.twice, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation(reentrant, pipelined):
    """Rows and values of the same model without checkpoints, also with forwards before their backwards."""

    def run(kind):
        torch.manual_seed(0)
        model = Segments(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        clock = Clock(grad_acc_steps=2)
        torch.manual_seed(1)
        with Monitored(
            model, optimizer, clock=clock, activations=True, activation_gradients=True, weight_gradients=True
        ) as monitored:
            losses = []
            for _ in range(2):
                losses.append(model(torch.randn(3, 4)).pow(2).sum())
                if not pipelined:
                    losses.pop().backward()
            for loss in losses:
                loss.backward()
            optimizer.step()
        # The inner backward of each segment adds to the weight's gradient; the last row has the sum.
        assert {row[0] for row in monitored.recorder.doubled()} <= {"grad_unreduced"}
        return monitored

    plain, again = run(None), run(reentrant)
    assert again.recorder.rows.keys() == plain.recorder.rows.keys()
    for row, value in plain.recorder.rows.items():
        assert again.recorder.rows[row] == pytest.approx(value, rel=1e-6), row
    for micro_step in range(2):
        for kind in ("actv", "actv_grad"):
            assert again.recorder.names(kind, 0, micro_step) == plain.recorder.names(kind, 0, micro_step)
    assert again.missing() == plain.missing()


def test_a_second_backward_of_one_graph():
    """What counts is the loss's own backward, the last one; a graph of an earlier step has no row."""

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + self.shift

    model = nn.Sequential(Shift(), Returns(lambda x: x.pow(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Monitored(model, optimizer, activation_gradients=True) as monitored:
        batch = torch.ones(2, 3, requires_grad=True)
        out = model(batch)
        (gradient,) = torch.autograd.grad(out.sum(), batch, create_graph=True)
        (out.mean() + gradient.sum()).backward(retain_graph=True)
        # out.mean() and, through its gradient, out.sum() again.
        assert monitored.recorder.rows["actv_grad", "1.output", 0, 0] == pytest.approx((6 * (1 / 6) ** 2) ** 0.5)
        optimizer.step()
        out.sum().backward()
        assert not [key for key in monitored.recorder.rows if key[2] == 1]


def test_packed_and_nested_values():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 2)

        def forward(self, packed, ragged):
            return self.rnn(packed)[1][0]

    model = Model()
    with watch(model) as monitored:
        packed = pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
        ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        recorder = monitored.recorder
        model(packed, ragged).sum().backward()
        names = recorder.names("actv", 0, 0)
        assert names[:2] == ["rnn.input_0_data", "rnn.input_0_batch_sizes"]
        assert names[2:6] == ["rnn.output_0_data", "rnn.output_0_batch_sizes", "rnn.output_1_0", "rnn.output_1_1"]
        assert recorder.refs["actv", ".input_1", 0, 0].shape == ()
        assert monitored.notes == []


SPEC = [
    ({}, {"input": Elements(length=1)}, ["b.input"]),
    ({}, {"output": Elements(length=2, index=1)}, ["b.output_1"]),
    ({}, {"output": Elements(length=2)}, ["b.output_0", "b.output_1"]),
    ({}, {"output": Elements()}, ["b.output_0", "b.output_1"]),
    ({}, {"input": Elements(), "output": Elements(index=0)}, ["b.input", "b.output_0"]),
]


@pytest.mark.parametrize(("grads", "elements", "names"), SPEC)
def test_elements(grads, elements, names):
    model = nn.Sequential(
        OrderedDict(
            a=nn.Linear(3, 4), b=Returns(lambda x: (x[:, :1], x[:, 1:])), c=Returns(lambda p: p[0] + p[1].sum())
        )
    )
    targets = {"b": Sides(elements={**elements, **{f"{side}_grad": value for side, value in elements.items()}})}
    with watch(model, targets=targets) as monitored:
        model(torch.randn(2, 3)).sum().backward()
        assert monitored.recorder.names("actv", 0, 0) == names
        assert monitored.recorder.names("actv_grad", 0, 0) == names
        assert monitored.notes == []


def test_elements_of_keyword_inputs_and_mappings():
    class Keywords(nn.Module):
        def forward(self, x, mask=None, scale=None):
            return {"out": x * mask * scale, "mask": mask}

    model = nn.Sequential()
    model.register_module("b", Keywords())
    model.forward = lambda x: model.b(x, mask=x * 2, scale=x * 3)["out"]
    for elements, names in (
        ({"input": Elements(length=1, index=0)}, ["b.input_0"]),
        ({"input": Elements(length=3, index=2)}, ["b.input_scale"]),
        ({"input": Elements(length=1)}, ["b.input_0"]),
        ({"input": Elements(length=3)}, ["b.input_0", "b.input_mask", "b.input_scale"]),
        ({"output": Elements(length=2, index=1)}, ["b.output_mask"]),
    ):
        with watch(model, targets={"b": Sides(elements=elements)}) as monitored:
            model(torch.randn(2))
            assert monitored.recorder.names("actv", 0, 0) == names


def test_a_wrong_number_of_elements_is_said_once(caplog):
    model = nn.Sequential(nn.Linear(3, 4), Returns(lambda x: (x, x * 2)), Returns(lambda p: p[0]))
    with watch(model, targets={"1": Sides(elements={"output": Elements(length=3, index=0)})}) as monitored:
        for _ in range(3):
            model(torch.randn(2, 3))
        text = "targets: output of 1 has 2 elements, not 3: not monitored"
        assert [record.getMessage() for record in caplog.records] == [text]
        assert monitored.recorder.rows == {}
        assert monitored.missing() == {("actv", "1.output"): "2 elements, not the 3 that targets says"}


def test_targets_and_their_stages():
    chunks = [nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2)]
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.0)
    targets = Targets({"0": Sides(), "1:1": Sides(), "0:1.weight": Sides()})
    with Monitored(chunks, optimizer, activations=True, weights=True, targets=targets) as monitored:
        chunks[1](chunks[0](torch.randn(2, 3))).sum().backward()
        optimizer.step()
        rows = monitored.recorder.rows
        calls = [name for kind, name, _, _ in rows if kind == "actv"]
        assert calls == ["0.input", "0.output", "1:0.input", "1:0.output", "1:1.input", "1:1.output"]
        weights = [name for kind, name, _, _ in rows if kind == "param_origin"]
        assert weights == ["0.weight", "0.bias", "1.weight", "1:0.weight", "1:0.bias", "1:1.weight", "1:1.bias"]


def test_a_name_that_matches_nothing_is_reported(caplog):
    model = nn.Sequential(OrderedDict(fc1=nn.Linear(3, 3), fc2=nn.Linear(3, 3)))
    with watch(model, targets={"fc3": Sides(), "fc1": Sides()}) as monitored:
        assert monitored.notes == ["targets: nothing in the model is called 'fc3'; near: fc2, fc1"]
        assert "'fc3'" in caplog.text


class NoneForOne(torch.autograd.Function):
    """Tells autograd that one of its inputs gets no gradient."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Merges(nn.Module):
    def forward(self, x, y):
        return NoneForOne.apply(x, y)


class Splits(nn.Module):
    """Returns pieces, of which the model uses one."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


class Partly(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.first, self.splits, self.merges = nn.Linear(4, 4), Splits(how), Merges()
        self.side, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x)
        used = self.splits(hidden)[0]
        merged = self.merges(hidden, self.side(x))
        return self.last(merged).sum() + used.sum()


@pytest.mark.parametrize("how", [lambda x: x.unbind(1), lambda x: x.chunk(2, 1), lambda x: x.split(1, 1)])
def test_tensors_that_autograd_gives_no_gradient(how):
    """Autograd then calls hooks with None. That tensor has no row, with the reason; all others have theirs."""
    model = Partly(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, activation_gradients=True) as monitored:
        for _ in range(2):
            model(torch.randn(5, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
        missing = monitored.missing()
        assert monitored.notes == []
    rows = {name for kind, name, step, _ in monitored.recorder.rows if (kind, step) == ("actv_grad", 1)}
    assert {"first.output", "splits.input", "splits.output_0", "merges.input_0", "merges.output", ".output"} <= rows
    without = {name for (kind, name) in missing if kind == "actv_grad"}
    assert {"splits.output_1", "merges.input_1", "side.output"} <= without
    assert not without & rows
    for name in ("splits.output_1", "merges.input_1"):
        assert missing["actv_grad", name].startswith("autograd gave None"), missing
