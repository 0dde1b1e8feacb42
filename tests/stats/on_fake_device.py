"""Statistics on a device without float64. `test_fake_device.py` runs this file in a process of its own."""

import numpy as np
import pytest
import torch

from msmon_stats.float32 import ROW, WORK_BYTES

from . import fake_device as fake
from .feature_conformance import FeatureConformance
from .test_torch import TensorConformance

RULES = fake.RULES
ROWS_OF_WORK = WORK_BYTES // (9 * ROW)


@pytest.fixture(autouse=True)
def _new_counts():
    RULES.reset()
    yield
    fake.drain()


def there(values):
    return torch.as_tensor(values).to(fake.NAME)


class OnDevice:
    missing = ("float64", "complex128", "uint32", "uint64")
    rtol = 1e-6
    repeats = 1e-15

    def make(self, values, dtype):
        if dtype in self.missing:
            raise TypeError(dtype)
        return there(torch.from_numpy(np.array(values)).to(getattr(torch, dtype)))

    def make_integers(self, values):
        return there(torch.from_numpy(values))

    def exact(self, tensor):
        tensor = tensor.detach().cpu()
        return (tensor.abs() if tensor.is_complex() else tensor).to(torch.float64).numpy()

    def host(self, result):
        return result.cpu().numpy()


class TestEager(OnDevice, TensorConformance):
    kernel = None

    def unsupported(self):
        return super().unsupported()[:3]

    def test_sparse_counts_the_zeros_that_are_not_stored(self):
        pytest.skip("the stand-in has no sparse tensors")


class TestLazy(TestEager):
    """Operators run when somebody waits."""

    sizes = (0, 1, ROW - 1, ROW, ROW + 1, 300_001)

    @pytest.fixture(autouse=True)
    def _lazy(self):
        with RULES.set(lazy=True):
            yield


class TestSequential(TestEager):
    """Sums are made one value after the other."""

    @pytest.fixture(autouse=True)
    def _sequential(self):
        with RULES.set(sequential=True):
            yield


class TestFeatures(FeatureConformance):
    rtol = 1e-7

    def make(self, array):
        # Of the tests' formulas in float64 what the device can hold.
        return there(torch.from_numpy(np.array(array, dtype=np.float32) if array.dtype == float else np.array(array)))

    def host(self, result):
        return result.cpu().double().numpy()


class TestLazyFeatures(TestFeatures):
    @pytest.fixture(autouse=True)
    def _lazy(self):
        with RULES.set(lazy=True):
            yield
