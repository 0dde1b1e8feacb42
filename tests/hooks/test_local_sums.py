"""Sums of a rank's own gradients, where the engine keeps none."""

import pytest
import torch
from torch import nn

from msmon_hooks.torch.grads import local_sums
from msmon_hooks.torch.grads.local_sums import LocalSums

GRADIENTS = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 4.0]), torch.tensor([2.0, 1.0])]


def added(sums, dtype=torch.float32):
    weight = nn.Parameter(torch.zeros(2))
    last = len(GRADIENTS) - 1
    return [sums.add(weight, one, last=at == last, dtype=dtype).tolist() for at, one in enumerate(GRADIENTS)]


def test_sums_over_micro_steps():
    kept = [gradient.clone() for gradient in GRADIENTS]
    sums = LocalSums(8, pytest.fail)
    assert added(sums) == [[1.0, -2.0], [1.5, 2.0], [3.5, 3.0]]
    # Complete: the next one begins anew, and the gradients are what they were.
    assert added(sums) == [[1.0, -2.0], [1.5, 2.0], [3.5, 3.0]]
    assert all(torch.equal(one, before) for one, before in zip(GRADIENTS, kept, strict=True))


def test_one_micro_step_takes_no_memory():
    weight, gradient = nn.Parameter(torch.zeros(2)), torch.ones(2)
    assert LocalSums(8, pytest.fail).add(weight, gradient, last=True, dtype=torch.float32) is gradient


def test_dtype_of_the_sum():
    gradients = [torch.full((2,), 1.0, dtype=torch.bfloat16), torch.full((2,), 2.0**-10, dtype=torch.bfloat16)]
    sums, weight = LocalSums(8, pytest.fail), nn.Parameter(torch.zeros(2))
    for at, gradient in enumerate(gradients):
        total = sums.add(weight, gradient, last=at == 1, dtype=torch.float32)
    assert total.tolist() == [1.0 + 2.0**-10] * 2


def test_forgets_an_unfinished_step():
    sums, weight = LocalSums(8, pytest.fail), nn.Parameter(torch.zeros(2))
    sums.add(weight, GRADIENTS[0], last=False, dtype=torch.float32)
    sums.clear()
    assert added(sums)[-1] == [3.5, 3.0]


def test_too_little_memory_is_said_once_and_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(local_sums, "free_memory", lambda device: 100 * 2**20)
    said = []
    sums = LocalSums(51 * 2**20, said.append)
    assert added(sums) == [gradient.tolist() for gradient in GRADIENTS]
    assert added(sums) == [gradient.tolist() for gradient in GRADIENTS]
    assert said == ["51 MiB would be needed, and 100 MiB of cpu are free"]
    assert added(LocalSums(50 * 2**20, pytest.fail))[-1] == [3.5, 3.0]


def test_free_memory():
    assert local_sums.free_memory(torch.device("cpu")) is None
    assert local_sums.free_memory(torch.device("meta")) is None
