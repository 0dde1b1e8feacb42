"""Tensors in the objects that modules return and are called with."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from .recorder import Monitored


class NestedTensor:
    """As in DETR."""

    def __init__(self, tensors, mask=None):
        self.tensors = tensors
        self.mask = mask
        self.made_by = SimpleNamespace(elsewhere=torch.ones(2))

    @property
    def decomposed(self):
        raise RuntimeError("nobody asks for a property")

    def __getattr__(self, name):
        raise RuntimeError(f"nobody asks for {name}")


@dataclasses.dataclass
class Data:
    tensors: Any
    mask: Any = None


@dataclasses.dataclass(slots=True, frozen=True)
class SlottedData:
    tensors: Any


@attrs.frozen
class Attrs:
    tensors: Any


@attrs.define(slots=False)
class AttrsWithDict:
    tensors: Any


class Slots:
    __slots__ = ("__weakref__", "never_set", "tensors")

    def __init__(self, tensors):
        self.tensors = tensors


class Itself:
    """Holds itself."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.me = [self]


class LoopingList(list):
    """Holds itself too."""

    def __init__(self, tensors):
        super().__init__([tensors])
        self.append(self)


OUTPUTS = {
    "plain object": (NestedTensor, "tensors"),
    "dataclass": (Data, "tensors"),
    "dataclass with slots": (SlottedData, "tensors"),
    "attrs": (Attrs, "tensors"),
    "attrs with a dictionary": (AttrsWithDict, "tensors"),
    "slots": (Slots, "tensors"),
    "namespace": (lambda x: SimpleNamespace(tensors=x), "tensors"),
    "model output": (lambda x: BaseModelOutput(last_hidden_state=x), "last_hidden_state"),
    "distribution": (lambda x: Normal(x, 1.0), "loc"),
    "in a dictionary": (lambda x: {"features": [NestedTensor(x)]}, "features_0_tensors"),
    "in a dataclass": (lambda x: Data(NestedTensor(x)), "tensors_tensors"),
    "itself": (Itself, "tensors"),
}


class Backbone(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.make = make

    def forward(self, x):
        return self.make(self.fc(x))


class Root(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.backbone = Backbone(make)
        self.taker = Taker()

    def forward(self, x):
        return self.taker(self.backbone(x))


class Taker(nn.Module):
    def forward(self, made):
        return made


TAKE = {
    "in a dictionary": lambda output: output["features"][0].tensors,
    "in a dataclass": lambda output: output.tensors.tensors,
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_two_forwards_before_two_backwards(kind):
    """Each backward is that of its forward, and the tensor has rows on both of its sides."""
    make, path = OUTPUTS[kind]
    take = TAKE.get(kind, attrgetter(path))
    torch.manual_seed(0)
    model = Root(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    request = {"activations": True, "activation_gradients": True, "weight_gradients": True, "each_micro_step": True}
    with Monitored(model, optimizer, **request) as monitored:
        outputs = [model(torch.randn(3, 4)) for _ in range(2)]
        factors = (1.0, 10.0)
        for output, factor in zip(outputs, factors, strict=True):
            (factor * take(output).sum()).backward()
        optimizer.step()
        rows = monitored.recorder.rows
        assert set(monitored.missing().values()) <= {"no gradient reached it"}
        assert not monitored.notes
    for micro_step, factor in enumerate(factors):
        for name in (f"backbone.output_{path}", f"taker.input_0_{path}", f".output_{path}"):
            assert ("actv", name, 0, micro_step) in rows, sorted(rows)
            assert rows["actv_grad", name, 0, micro_step] == pytest.approx(factor * 12**0.5)
    assert rows["grad_unreduced", "backbone.fc.bias", 0, 0] == pytest.approx(3 * 2.0)
    assert rows["grad_unreduced", "backbone.fc.bias", 0, 1] == pytest.approx(33 * 2.0)
    assert not [key for key in rows if "elsewhere" in key[1]]


def test_a_list_that_holds_itself():
    model = Root(LoopingList)
    with Monitored(model, torch.optim.SGD(model.parameters(), lr=0.1), activations=True) as monitored:
        model(torch.randn(3, 4))
        assert ("actv", "backbone.output_0", 0, 0) in monitored.recorder.rows
        assert not monitored.notes


def test_a_cache_of_keys_and_values_is_no_output():
    """Every layer is given the cache with the tensors of all layers."""
    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    model = Root(lambda x: (x, cache))
    with Monitored(model, torch.optim.SGD(model.parameters(), lr=0.1), activations=True) as monitored:
        model(torch.randn(3, 4))
        rows = monitored.recorder.rows
    assert {name for _, name, _, _ in rows if name.startswith("backbone.output")} == {"backbone.output_0"}


@pytest.mark.parametrize("make", [NestedTensor, Attrs])
def test_the_document_of_the_structure(make):
    documents = []
    model = Root(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitored(model, optimizer, on_structure=documents.append):
        model(torch.randn(3, 4)).tensors.sum().backward()
        optimizer.step()
    assert documents[0]["0:backbone"]["output"]["tensors"] == "size=(3, 4), dtype=torch.float32"
    assert documents[0]["0:backbone"]["output_grad"]["tensors"] == "size=(3, 4), dtype=torch.float32"
