"""Tensors that stand for others and have no memory of their own: skipped with a reason, or waited for."""

import warnings

import pytest
import torch

import msmon_stats
from msmon_stats.torch import PartialBuffer

HAS_JAGGED = hasattr(torch, "jagged")


class Wrapper(torch.Tensor):
    """As third parties make them: the values are somewhere else."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.size(), dtype=values.dtype, device=values.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def test_a_wrapper_is_skipped_with_a_reason():
    wrapper = Wrapper(torch.ones(3))
    assert "without memory of its own" in msmon_stats.unsupported_reason(wrapper)
    assert PartialBuffer().measure([wrapper, torch.ones(2)], 1e-8) == [-1, 0]


def test_the_result_of_a_functional_collective_is_read():
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    buffer = PartialBuffer()
    result = functional.AsyncCollectiveTensor(torch.tensor([3.0, -4.0]))
    assert buffer.measure([result], 1e-8) == [0]
    assert buffer.transfer().matrix()[0].tolist() == [2, 0, 0, 0, -4, 3, -1, 25]


class Scaled(Wrapper):
    """float8 with a scale, as torchao and Transformer Engine make them."""

    @staticmethod
    def __new__(cls, values):
        self = Wrapper.__new__(cls, values)
        self.scale = values.abs().max() / 448.0
        self.data8 = (values / self.scale).to(torch.float8_e4m3fn)
        return self

    def to_original_precision(self):
        return self.data8.to(torch.float32) * self.scale


class Cast(Wrapper):
    """Holds the weight as it is, and is cast when it is gathered."""

    @staticmethod
    def __new__(cls, values):
        self = Wrapper.__new__(cls, values)
        self.held = values
        return self

    def __tensor_flatten__(self):
        return ["held"], None


class Raises(Wrapper):
    def dequantize(self):
        raise RuntimeError("not on this device")


@pytest.mark.parametrize("kind", [Scaled, Cast])
@pytest.mark.parametrize("parameter", [False, True])
def test_the_values_inside_of_a_wrapper(kind, parameter):
    values = torch.randn(40, 30, generator=torch.manual_seed(0))
    wrapper = kind(values)
    exact = wrapper.to_original_precision() if kind is Scaled else values
    if parameter:
        wrapper.requires_grad_(True)
    assert msmon_stats.unsupported_reason(wrapper) is None
    buffer = PartialBuffer()
    assert buffer.measure([wrapper, torch.ones(2)], 1e-8) == [0, 1]
    expected = msmon_stats.partial(exact)
    torch.testing.assert_close(torch.from_numpy(buffer.transfer().matrix()[0]), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(msmon_stats.partial(wrapper), expected, rtol=1e-12, atol=0)
    largest = msmon_stats.linear_features(wrapper)
    torch.testing.assert_close(largest, msmon_stats.linear_features(exact), rtol=1e-6, atol=0)


def test_a_wrapper_that_cannot_be_unpacked_is_skipped_alone():
    wrapper = Raises(torch.ones(3))
    assert PartialBuffer().measure([wrapper, torch.ones(2)], 1e-8) == [-1, 0]
    reason = "a Raises whose values cannot be had: RuntimeError: not on this device"
    assert msmon_stats.unsupported_reason(wrapper) == reason


@pytest.mark.parametrize("jagged", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_JAGGED, reason="2.2"))])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_nested_tensors(jagged, requires_grad):
    parts = [torch.arange(6.0).reshape(2, 3) - 2, torch.zeros(1, 3), torch.ones(4, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layout = torch.jagged if jagged else torch.strided
        nested = torch.nested.nested_tensor(parts, layout=layout, requires_grad=requires_grad)
    expected = msmon_stats.partial(torch.cat(parts))
    for tensor in (nested, nested * 1.0):
        assert msmon_stats.unsupported_reason(tensor) is None
        assert torch.equal(msmon_stats.partial(tensor), expected)
        buffer = PartialBuffer()
        assert buffer.measure([tensor], 1e-8) == [0]
        assert buffer.transfer().matrix()[0].tolist() == expected.tolist()


@pytest.mark.skipif(not HAS_JAGGED, reason="jagged nested tensors came with torch 2.2")
def test_nested_tensors_with_holes():
    padded = torch.ones(2, 5, 3)
    start, length = torch.tensor([0, 1]), torch.tensor([2, 3])
    narrow = torch.nested.narrow(padded, 1, start, length, layout=torch.jagged)
    assert "holes" in msmon_stats.unsupported_reason(narrow)
    assert PartialBuffer().measure([narrow], 1e-8) == [-1]
