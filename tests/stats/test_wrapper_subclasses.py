"""Tensors that stand for others and have no memory of their own: skipped with a reason, or waited for."""

import pytest
import torch

import msmon_stats
from msmon_stats.torch import PartialBuffer


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
