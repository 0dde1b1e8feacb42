"""MindSpore tensors on the CPU. ``test_mindspore.py`` runs this file in the environment that has MindSpore."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

import msmon_stats
from msmon_stats import partial
from msmon_stats.mindspore import PartialBuffer, operators

from .conformance import Conformance
from .feature_conformance import FeatureConformance


class MindSporeConformance(Conformance):
    # Conversion by the framework is for the device; here it is what numpy gives that counts.
    missing = ("float8_e4m3fn", "float8_e5m2")
    many_values = 200_000

    def make(self, values, dtype):
        if dtype == "bfloat16":
            return Tensor(np.array(values, dtype=np.float32)).astype(mindspore.bfloat16)
        if dtype.startswith("float8"):
            raise AttributeError(dtype)
        return Tensor(np.array(values).astype(dtype))

    def exact(self, tensor):
        array = tensor.asnumpy()
        return np.abs(array).astype(np.float64) if array.dtype.kind == "c" else array.astype(np.float64)

    def host(self, result):
        return result.asnumpy()

    def views(self, tensor):
        return [
            ("transposed", tensor.swapaxes(1, 2)),
            ("permuted", tensor.transpose(1, 2, 0)),
            ("every second", tensor[::2]),
            ("a column", tensor[:, 1]),
            ("the later part", tensor[2:]),
            ("one of them", tensor[1, 2, 3]),
            ("parameter", mindspore.Parameter(tensor, name="p")),
            ("not computed yet", mint.add(mint.mul(tensor, 2), tensor)),
        ]

    def unsupported(self):
        from mindspore.common.initializer import initializer

        return [
            (initializer("ones", [3, 4], mindspore.float32), "not initialized"),
            (mindspore.RowTensor(Tensor([0]), Tensor([[1.0]]), (3, 1)), "RowTensor"),
        ]

    def test_sparse_counts_the_zeros_that_are_not_stored(self):
        indices = Tensor([[0, 0], [0, 0], [2, 1]], mindspore.int32)
        twice = mindspore.COOTensor(indices, Tensor([1.0, 2.0, -3.0], mindspore.float32), (5, 2))
        assert self.host(partial(twice, kernel=self.kernel)).tolist() == [10, 0, 0, 8, -3, 3, 0, 18]
        rows = mindspore.CSRTensor(
            Tensor([0, 1, 2], mindspore.int32), Tensor([1, 0], mindspore.int32), Tensor([1.0, 2.0]), (2, 4)
        )
        assert self.host(partial(rows, kernel=self.kernel)).tolist() == [8, 0, 0, 6, 0, 2, 3, 5]


class TestMindSporeCompiled(MindSporeConformance):
    kernel = "cpu"


class TestMindSporeOnArrays(MindSporeConformance):
    kernel = "operators"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "bool_"])
def test_operators_for_accelerators_give_the_same(dtype, monkeypatch):
    monkeypatch.setattr(operators, "_MIN_CHUNK", 1000)
    values = np.random.default_rng(0).standard_normal((70, 90)) * 3
    if "float" in dtype:
        values[0, 0], values[1, 1], values[2, 2] = np.nan, np.inf, -np.inf
    tensor = Tensor(values.astype(np.float32)).astype(getattr(mindspore, dtype))
    found = operators.accumulate(tensor, 0.5).asnumpy()
    np.testing.assert_allclose(found, partial(tensor, 0.5).asnumpy(), rtol=1e-12)
    empty = operators.accumulate(Tensor(np.zeros((0, 3), np.float32)), 0.5).asnumpy()
    assert empty.tolist() == [0, 0, 0, 0, np.inf, -np.inf, 0, 0]


class TestMindSporeFeatures(FeatureConformance):
    def make(self, array):
        return Tensor(np.array(array))

    def host(self, result):
        return result.asnumpy()

    def matrices(self, rng):
        # A matrix costs MindSpore some hundred small operators; the algorithm is tested elsewhere.
        few = ("one just above many", "denser towards the top", "of rank two", "random (2, 3)")
        return [(name, matrix) for name, matrix in super().matrices(rng) if name in few]


def test_buffer():
    buffer = PartialBuffer()
    ones = Tensor(np.ones(3, np.float32))
    from mindspore.common.initializer import initializer

    lazy = initializer("ones", [3], mindspore.float32)
    assert buffer.measure([ones * 4, lazy, ones.astype(mindspore.bfloat16)], 1e-8, Tensor(2.0)) == [0, -1, 1]
    assert buffer.put(Tensor([7.0, 8.0], mindspore.float64)) == 2
    assert buffer.measure([ones], 1e-8) == [3]
    first = buffer.transfer()
    assert buffer.measure([ones], 1e-8) == [0]
    matrix = first.matrix()
    assert matrix[:, 6].tolist() == [6.0, 1.5, 0.0, 3.0]
    assert matrix[2, :3].tolist() == [7.0, 8.0, 0.0]
    assert buffer.transfer().matrix().shape == (1, 8)
    assert buffer.transfer().matrix().shape == (0, 8)


def test_measured_inside_a_gradient():
    net = nn.Dense(4, 3)
    buffer = PartialBuffer()

    def loss(x):
        y = net(x)
        buffer.measure([y], 1e-8)
        msmon_stats.router_entropy(y)
        return y.sum()

    x = Tensor(np.ones((2, 4), np.float32))
    plain = mindspore.grad(lambda x: net(x).sum())(x).asnumpy()
    watched = mindspore.grad(loss)(x).asnumpy()
    np.testing.assert_array_equal(plain, watched)
    assert buffer.transfer().matrix()[0, 0] == 6
