"""Features of arrays and torch tensors."""

import numpy as np
import pytest
import torch

import msmon_stats

from .feature_conformance import FeatureConformance


class TestNumpyFeatures(FeatureConformance):
    def make(self, array):
        return array


class TestTorchFeatures(FeatureConformance):
    def make(self, array):
        return torch.from_numpy(np.array(array))

    def host(self, result):
        return result.numpy()


def test_under_autocast_and_with_gradients():
    weight = torch.nn.Parameter(torch.randn(100, 80, generator=torch.Generator().manual_seed(0)))
    expected = torch.linalg.matrix_norm(weight.detach(), 2).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = msmon_stats.linear_features(weight)
    assert not found.requires_grad
    # bfloat16 products would be off by more.
    assert found[1].item() == pytest.approx(expected, rel=1e-5)


def test_low_precision_weights():
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = torch.linalg.matrix_norm(weight.double(), 2).item()
    assert msmon_stats.linear_features(weight)[1].item() == pytest.approx(expected, rel=1e-3)


def test_the_random_number_generators_are_not_touched():
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    values = torch.ones(30, 20)
    msmon_stats.linear_features(values)
    msmon_stats.attention_features(values.reshape(30, 1, 1, 20), values.reshape(30, 1, 1, 20))
    msmon_stats.partial(values)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_adam_as_torch_does_it():
    parameter = torch.nn.Parameter(torch.ones(50))
    optimizer = torch.optim.Adam([parameter], lr=1.0, betas=(0.8, 0.95), eps=1e-3)
    for seed in range(3):
        parameter.grad = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        before = parameter.detach().clone()
        optimizer.step()
    state = optimizer.state[parameter]
    update, _ = msmon_stats.adam_update(
        state["exp_avg"], state["exp_avg_sq"], step=state["step"], betas=(0.8, 0.95), eps=1e-3
    )
    torch.testing.assert_close(before - parameter.detach(), update, rtol=1e-4, atol=1e-6)


def test_memory_of_attention_grows_with_the_length_only():
    import tracemalloc

    peaks = []
    for length in (4096, 8192):
        q = np.ones((length, 1, 1, 8), dtype=np.float32)
        tracemalloc.start()
        msmon_stats.attention_features(q, q)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # All scores at once would be 64 and 256 MiB of float32, and several times as much on the way.
    assert peaks[1] < 1.3 * peaks[0]
    assert peaks[1] < 8192 * 8192
