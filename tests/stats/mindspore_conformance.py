"""MindSpore tensors on the CPU. ``test_mindspore.py`` runs this file in the environment that has MindSpore."""

from contextlib import ExitStack
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

import msmon_stats
from msmon_stats import OPS, partial, summarize
from msmon_stats.float32 import ROW
from msmon_stats.mindspore import PartialBuffer, buffer, float32_rows, math, partials
from msmon_stats.mindspore.float32_work import flushes_denormals

from . import reference
from .conformance import Conformance
from .feature_conformance import FeatureConformance
from .fingerprint_conformance import FingerprintConformance

try:
    from mindspore.utils import MsDispatchMode
except ImportError:  # older versions show nobody what they launch
    MsDispatchMode = ExitStack
shows_launches = pytest.mark.skipif(MsDispatchMode is ExitStack, reason="this MindSpore does not show what it launches")


class MindSporeConformance(FingerprintConformance, Conformance):
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

    def content(self, tensor):
        array = tensor.asnumpy()
        return array.size, np.ascontiguousarray(array).tobytes()

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

    def test_sparse_tensors_have_no_fingerprint(self):
        rows = mindspore.CSRTensor(
            Tensor([0, 1, 2], mindspore.int32), Tensor([1, 0], mindspore.int32), Tensor([1.0, 2.0]), (2, 4)
        )
        dense = normals(3)
        assert self.found([rows, dense]) == ["", *self.expected([dense])]


class TestMindSporeCompiled(MindSporeConformance):
    kernel = "cpu"


class TestMindSporeOnArrays(MindSporeConformance):
    kernel = "operators"


class TestMindSporeFloat32(MindSporeConformance):
    """What serves accelerators, run on the CPU: its operators are those of the framework."""

    kernel = "float32"
    flushes_denormals = staticmethod(flushes_denormals)
    sizes = (0, 1, ROW - 1, ROW, ROW + 1, 300_001)
    rtol = 1e-6
    repeats = 1e-6


class TestMindSporeFeatures(FeatureConformance):
    def make(self, array):
        return Tensor(np.array(array))

    def host(self, result):
        return result.asnumpy()

    def matrices(self, rng):
        # A matrix costs MindSpore some hundred small operators; the algorithm is tested elsewhere.
        few = ("one just above many", "denser towards the top", "of rank two", "random (2, 3)")
        return [(name, matrix) for name, matrix in super().matrices(rng) if name in few]


class TestMindSporeFeaturesOnAnAccelerator(TestMindSporeFeatures):
    """Without float64."""

    rtol = 1e-6

    @pytest.fixture(autouse=True)
    def _accelerator(self, accelerator):
        with accelerator:
            yield

    def make(self, array):
        # Of the tests' formulas in float64 what the device can hold.
        return Tensor(np.array(array, dtype=np.float32) if array.dtype == float else np.array(array))

    def host(self, result):
        return super().host(result).astype(np.float64)


LAUNCHES = 22
"""Operators that reading rows takes, whatever is in them."""
# What needs no kernel: other names for the same memory.
VIEWS = {"Reshape", "ViewDtype", "NarrowView", "ExpandDims", "StopGradient", "SelectExtView"}


class Launches(MsDispatchMode):
    """Collects the operators that are launched; refuses those that take or give float64."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __ms_dispatch__(self, func, args, kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in (*args, result):
            assert getattr(value, "dtype", None) != mindspore.float64, func.name
        if func.name not in VIEWS:
            self.names.append(func.name)
        return result


@pytest.fixture
def accelerator(monkeypatch):
    """Tensors count as tensors on an accelerator. Inside of it, what is launched is collected."""
    for module in (buffer, partials, float32_rows, math):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    return Launches()


def normals(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@shows_launches
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_list_of_tensors_takes_25_operators(dtype, accelerator):
    shapes = [(32, 64), (32,), (64, 32), (7,), (1000, 3), (2048,), (5, 5, 5)] * 8
    tensors = [normals(*shape, seed=i).astype(getattr(mindspore, dtype)) for i, shape in enumerate(shapes)]
    expected = msmon_stats.numpy.partial_many([tensor.astype(mindspore.float32).asnumpy() for tensor in tensors])
    rows = PartialBuffer()
    rows.measure(tensors[:2], 1e-8)
    rows.transfer().matrix()
    with accelerator:
        rows.measure(tensors, 1e-8)
        transfer = rows.transfer()
    print(f"{len(tensors)} tensors of {dtype}: {len(accelerator.names)} operators")
    assert len(accelerator.names) == LAUNCHES + (2 if dtype == "float32" else 3) <= 25
    found = transfer.matrix()
    np.testing.assert_array_equal(found[:, :6], expected[:, :6])
    np.testing.assert_allclose(np.sqrt(found[:, 7]), np.sqrt(expected[:, 7]), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fingerprints_on_an_accelerator(dtype, accelerator):
    shapes = [(32, 64), (32,), (64, 31), (7,), (1000, 3), (2048,), (5, 5, 5), (3_000_001,)] * 2
    tensors = [normals(*shape, seed=i).astype(getattr(mindspore, dtype)) for i, shape in enumerate(shapes)]
    tensors += [Tensor(np.arange(70_000)), Tensor(np.array([True, False, True])), tensors[2].T]
    tensors += [Tensor(np.arange(5, dtype=np.int16)), tensors[0][:0], tensors[0].reshape(-1)[1:]]
    arrays = [np.ascontiguousarray(tensor.asnumpy()) for tensor in tensors]
    expected = [reference.fingerprint(array.size, array.tobytes()) for array in arrays]
    rows = PartialBuffer(fingerprint=True)
    with accelerator:
        rows.measure(tensors[:8], 1e-8, 2.0)
        early = rows.peek()
        rows.measure(tensors[8:], 1e-8)
        transfer = rows.transfer()
        rows.measure(tensors[3:5], 1e-8)
        again = rows.transfer()
    assert msmon_stats.fingerprints(early.matrix()) == expected[:8]
    assert msmon_stats.fingerprints(transfer.matrix()) == expected
    assert msmon_stats.fingerprints(again.matrix()) == expected[3:5]


@shows_launches
def test_operators_of_fingerprints(accelerator):
    counts = []
    for fingerprint in (False, True):
        rows = PartialBuffer(fingerprint=fingerprint)
        rows.measure([normals(100)], 1e-8)
        rows.discard()
        accelerator.names = []
        with accelerator:
            rows.measure([normals(100, seed=seed) for seed in range(50)], 1e-8)
            rows.transfer()
        counts.append(len(accelerator.names))
    print(f"for fingerprints: {counts[1] - counts[0]} operators")
    assert counts[1] - counts[0] == 4 + 11


@shows_launches
def test_a_call_takes_one_operator_and_long_tensors_take_few(accelerator):
    rows = PartialBuffer()
    with accelerator:
        for seed in range(20):
            rows.measure([normals(30, 40, seed=seed)], 1e-8)
        assert len(accelerator.names) == 20
        rows.measure([normals(5_000_000)], 1e-8)
        rows.transfer()
    # In place three times, and once with what was copied.
    assert len(accelerator.names) <= 20 + 4 * LAUNCHES + 4


@shows_launches
@pytest.mark.parametrize("fingerprint", [False, True])
def test_every_operator_exists_for_ascend(accelerator, fingerprint):
    """The installed package says so: it names the classes of Ascend's operators."""
    library = Path(mindspore.__file__).parent / "lib" / "plugin" / "libmindspore_ops_ascend.so"
    if not library.exists():
        pytest.skip("this package of MindSpore has nothing for Ascend")
    rows = PartialBuffer(fingerprint=fingerprint)
    with accelerator:
        tensors = [normals(70, 50), normals(9).astype(mindspore.bfloat16), Tensor([3, 4]), Tensor([True, False])]
        rows.measure(tensors, 1e-8, Tensor(1024.0))
        rows.put(Tensor([1, 2]))
        rows.transfer()
    code = library.read_bytes()
    missing = [name for name in set(accelerator.names) if f"{len(name) + 6}{name}AscendE".encode() not in code]
    assert missing == []


def test_norm_mean_and_std_are_right_to_1e_6():
    normal = np.random.default_rng(0).standard_normal(1 << 20)
    place = np.arange(1 << 20) % ROW
    cases = {
        "normals": normal + 0.1,
        "x 1e38": np.clip(normal + 0.1, -3, 3) * 1e38,
        "x 1e-25": normal * 1e-25 + 1e-26,
        "75 decades": 10.0 ** (np.random.default_rng(1).random(1 << 20) * 75 - 37),
        "far from 0": normal + 1e4,
        "all but one of a row alike": np.where(place == 7, -0.1, 0.1),
        "short and far from 0": 1 + 1e-4 * normal[:40],
        "skewed": np.exp(3 * normal),
    }
    for name, values in cases.items():
        values = values.astype(np.float32)
        found = summarize(Tensor(values), OPS, kernel="float32")
        expected = reference.statistics(values.astype(np.float64))
        for op in ("norm", "mean", "std", "rms"):
            assert found[op] == pytest.approx(expected[op], rel=1e-6, abs=1e-44), (name, op)
        for op in ("min", "max", "absmax", "zeros", "nans", "infs"):
            assert found[op] == expected[op], (name, op)


def test_a_buffer_on_an_accelerator(accelerator):
    rows = PartialBuffer()
    scale = Tensor(4.0, mindspore.float32)
    values = normals(3000)
    whole = Tensor(np.array([[-(2**31), 5], [2**31 - 1, 0]], np.int32))
    long = Tensor(np.array([2**53 + 1, -(2**63)]))
    with accelerator:
        assert rows.measure([Tensor(values.asnumpy() * 4), whole, long], 0.5, scale) == [0, 1, 2]
        assert rows.put(Tensor([7.0, 8.0])) == 3
        assert rows.put(Tensor(np.arange(9))) == 4
        assert rows.measure([values, whole.astype(mindspore.int8)], 0.5) == [6, 7]
        so_far = rows.peek()
        assert rows.measure([values], 1e-8) == [8]
        transfer = rows.transfer()
        assert rows.measure([values], 1e-8) == [0]
    assert len(so_far.matrix()) == 8
    found = transfer.matrix()
    expected = msmon_stats.numpy.partial(values.asnumpy(), 0.5)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[6, :6], expected[:6])
    assert found[1, :6].tolist() == [4, 0, 0, 1, -(2.0**31) / 4, (2.0**31 - 1) / 4]
    assert found[2, 4:6].tolist() == [-(2.0**61), (2.0**53) / 4]
    assert found[3].tolist() == [7, 8, 0, 0, 0, 0, 0, 0]
    assert found[4:6].ravel().tolist() == [*range(9), *[0] * 7]
    assert found[7, 0] == 4
    assert rows.transfer().matrix().shape == (1, 8)


def test_wide_values_are_read_on_the_host(monkeypatch, accelerator):
    rows = PartialBuffer()
    values = Tensor(np.array([1e300, -1e-300, np.nan, 1 + 2.0**-50]))
    assert rows.measure([values, Tensor(np.array([3 + 4j]))], 1e-8, Tensor(2.0)) == [0, 1]
    found = rows.transfer().matrix()
    np.testing.assert_array_equal(found[0], msmon_stats.numpy.partial(values.asnumpy() / 2))
    assert found[1].tolist() == [1, 0, 0, 0, 2.5, 2.5, 2.5, 6.25]


def test_the_choice_of_the_kernel(monkeypatch):
    assert partials.chosen_kernels() == {"cpu": "cpu"}
    monkeypatch.setattr(partials, "device_target", lambda: "Ascend")
    assert partials.chosen_kernels() == {"cpu": "cpu", "ascend": "float32"}
    monkeypatch.setenv("MSMON_KERNEL", "operators")
    # Forced where it can be.
    assert partials.chosen_kernels() == {"cpu": "operators", "ascend": "float32"}
    monkeypatch.setattr(partials, "on_host", lambda tensor: False)
    with pytest.raises(ValueError, match="MSMON_KERNEL is 'operators', which cannot be used here; allowed: float32"):
        partial(normals(3))


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
