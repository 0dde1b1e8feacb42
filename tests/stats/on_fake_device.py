"""Statistics on a device without float64. `test_fake_device.py` runs this file in a process of its own."""

import math
import threading

import numpy as np
import pytest
import torch

import msmon_stats
from msmon_stats import OPS, finalize, partial, summarize
from msmon_stats.float32 import ROW, WORK_BYTES
from msmon_stats.torch import PartialBuffer, kernels

from . import fake_device as fake
from . import reference
from .feature_conformance import FeatureConformance
from .test_torch import TensorConformance

RULES = fake.RULES
LAUNCHES = 23
"""Of operators that read the work memory, whatever lies in it."""
VALUES = WORK_BYTES // 9
"""About as many as fit into the work memory."""


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

    test_sparse_tensors_have_no_fingerprint = test_sparse_counts_the_zeros_that_are_not_stored

    def test_fingerprint_of_negative_and_conjugate_views(self):
        pytest.skip("nor such views")


class TestLazy(TestEager):
    """Operators run when somebody waits."""

    sizes = (0, 1, ROW - 1, ROW, ROW + 1, 300_001)

    @pytest.fixture(autouse=True)
    def _lazy(self):
        with RULES.set(lazy=True):
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


def launches(function, *args):
    RULES.reset()
    result = function(*args)
    return sum(RULES.launches.values()), result


def test_linear_features_take_fewer_launches():
    weight = there(torch.randn(64, 100, generator=torch.Generator().manual_seed(0)))
    msmon_stats.linear_features(weight)
    count, _ = launches(msmon_stats.linear_features, weight)
    fake.figure("launches for the stable rank of a weight", count, before=1000, most=450)
    assert RULES.waits == {}


@pytest.mark.parametrize("sequential", [False, True])
def test_norm_mean_and_std_are_right_to_1e_6(sequential):
    rng = np.random.default_rng(0)
    normals = rng.standard_normal(1 << 21)
    one_away = np.where(np.arange(1 << 21) % ROW == 7, -0.1, 0.1)
    cases = {
        "normals": normals + 0.1,
        "x 1e38": np.clip(normals + 0.1, -3, 3) * 1e38,
        "x 1e25": normals * 1e25 + 1e24,
        "x 1e-25": normals * 1e-25 + 1e-26,
        "denormals": normals * 1e-40 + 1e-41,
        "76 decades": 10.0 ** (rng.random(1 << 21) * 76 - 38),
        "far from 0": normals + 1e4,
        "far below 0": normals - 1e4,
        "all but one of a row alike": one_away,
        "one sign but one": np.where(np.arange(1 << 21) % ROW == 7, -1.0, rng.random(1 << 21)),
        "a third": np.full(1 << 21, 1 / 3),
        "skewed": np.exp(3 * normals),
    }
    with RULES.set(sequential=sequential):
        for name, values in cases.items():
            values = values.astype(np.float32)
            found = summarize(there(torch.from_numpy(values)), OPS)
            expected = reference.statistics(values.astype(np.float64))
            for op in ("norm", "mean", "std", "rms"):
                assert found[op] == pytest.approx(expected[op], rel=1e-6, abs=1e-44), (name, op)
            for op in ("min", "max", "absmax", "zeros", "nans", "infs"):
                assert found[op] == expected[op], (name, op)


def test_one_launch_a_call_and_a_few_for_millions_of_values():
    buffer = PartialBuffer()
    buffer.measure([there(torch.ones(3))], 1e-8)
    buffer.transfer().matrix()
    small = [there(torch.ones(1000)) for _ in range(20)]
    count, _ = launches(lambda: [buffer.measure([tensor, tensor], 1e-8) for tensor in small])
    assert count == len(small)
    count, transfer = launches(buffer.transfer)
    # Memory for what the rows leave, and the copy.
    assert count == LAUNCHES + 2
    assert RULES.waits == {}
    assert (transfer.matrix()[:, 0] == 1000).all()
    half = [tensor.bfloat16() for tensor in small]
    count, _ = launches(buffer.measure, half, 1e-8)
    assert count == 2


def gpt(width, layers, vocabulary, context):
    shapes = [(vocabulary, width), (context, width)]
    for _ in range(layers):
        shapes += [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,)]
        shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [*shapes, (width,), (width,)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_27_million_parameters(dtype, record_property):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in gpt(384, 12, 16000, 256)]
    assert len(tensors) == 148
    buffer = PartialBuffer()
    on_device = [there(tensor) for tensor in tensors]
    buffer.prepare(on_device[0].device, [dtype])
    count, transfer = launches(lambda: (buffer.measure(on_device, 1e-8), buffer.transfer())[1])
    rows = transfer.matrix()
    expected = msmon_stats.partial_many(tensors).numpy()
    np.testing.assert_array_equal(rows[:, :6], expected[:, :6])
    np.testing.assert_allclose(np.sqrt(rows[:, 7]), np.sqrt(expected[:, 7]), rtol=1e-7)
    fake.figure(f"launches for the gradients of a GPT of 27 M in {dtype}", count, before=12_108, most=210)


@pytest.mark.parametrize("lazy", [False, True])
def test_fingerprints_of_a_step(lazy):
    generator = torch.Generator().manual_seed(0)
    sizes = [3 * VALUES + 777, 5, ROW, 0, VALUES - 100, 2 * ROW - 1, 1, 9]
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    tensors[0][7], tensors[5][-1] = math.nan, math.inf
    tensors += [one.bfloat16() for one in tensors] + [
        tensors[1].half()[1:4],
        torch.arange(70_001),
        tensors[4].bfloat16()[1:],
    ]
    tensors += [torch.randn(300, 500, generator=generator).mT, torch.ones(1).expand(9, 7)]
    expected = msmon_stats.fingerprints(msmon_stats.partial_many(tensors, fingerprint=True).numpy())
    assert "" not in expected
    buffer = PartialBuffer(fingerprint=True)
    with RULES.set(lazy=lazy):
        on_device = [there(tensor) for tensor in tensors[:-2]]
        on_device += [there(tensors[-2].mT).mT, there(torch.ones(1)).expand(9, 7)]
        half = len(on_device) // 2
        buffer.measure(on_device[:half], 1e-8, 2.0)
        early = buffer.peek()
        for tensor in on_device[half:]:
            buffer.measure([tensor], 1e-8)
        transfer = buffer.transfer()
        assert msmon_stats.fingerprints(early.matrix()) == expected[:half]
        assert msmon_stats.fingerprints(transfer.matrix()) == expected
        # Nothing of the step before is left.
        buffer.measure(on_device[3:6], 1e-8)
        assert msmon_stats.fingerprints(buffer.transfer().matrix()) == expected[3:6]


def test_launches_of_fingerprints():
    generator = torch.Generator().manual_seed(0)
    found = []
    tensors = [there(torch.randn(shape, generator=generator)) for shape in gpt(384, 12, 16000, 256)]
    for fingerprint in (False, True):
        buffer = PartialBuffer(fingerprint=fingerprint)
        buffer.prepare(tensors[0].device, [torch.float32])
        RULES.reset()
        buffer.measure(tensors, 1e-8)
        buffer.transfer()
        found.append(sum(RULES.launches.values()))
        assert RULES.waits == {}
    fake.figure("launches for the fingerprints of these gradients, beside", found[1] - found[0], before="-", most=80)


def test_one_tensor_of_64_million():
    size = (1 << 26) + 777
    values = torch.randn(size, generator=torch.Generator().manual_seed(0))
    values[7], values[9], values[-1] = math.nan, math.inf, -5e-9
    expected = partial(values).numpy()
    buffer = PartialBuffer()
    tensor = fake.on_device(values)
    small = there(torch.ones(5))

    def step():
        buffer.measure([small], 1e-8)
        buffer.measure([tensor], 1e-8)
        return buffer.transfer()

    step().matrix()
    count, transfer = launches(step)
    np.testing.assert_array_equal(transfer.matrix()[1], expected)
    fake.figure(f"launches for a tensor of {size} values", count, before=22_535, most=260)


def test_memory_is_allocated_once():
    buffer = PartialBuffer()
    tensors = [there(torch.ones(VALUES // 3)), there(torch.ones(2 * VALUES)), there(torch.ones(1000, 100)[:, ::3])]
    buffer.prepare(tensors[0].device, [torch.float32])
    for step in range(3):
        RULES.allocated.clear()
        buffer.measure(tensors, 1e-8)
        transfer = buffer.transfer()
        rows = (VALUES // 3 + 2 * VALUES + 34_000) // ROW
        # What the rows leave; from the second step on it is known how much that is.
        assert sum(RULES.allocated) <= (4 if step == 0 else 2) * 48 * (rows + ROW), step
        assert transfer.matrix()[:, 0].tolist() == [VALUES // 3, 2 * VALUES, 34_000]


def test_whole_numbers_keep_their_extremes():
    for dtype in (torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        values = torch.tensor([[limits.min, limits.max - 1, 0], [5, 0, 2**24 + 1]], dtype=dtype)
        row = partial(there(values)).tolist()
        assert row[:6] == [6, 0, 0, 2, float(limits.min), float(limits.max - 1)]
        row = partial(there(values[:, 1:])).tolist()
        assert row[3:6] == [2, 0, float(limits.max - 1)]


def test_wide_values_are_read_on_the_host():
    values = torch.tensor([1e300, -1e-300, math.nan, 1 + 2.0**-50], dtype=torch.float64)
    with RULES.set(forbidden=set(), lazy=True):
        buffer = PartialBuffer()
        tensor = there(values)
        assert buffer.measure([tensor, there(torch.ones(2))], 1e-8) == [0, 1]
        tensor.zero_()
        scaled = there(values * 2)
        buffer.measure([scaled], 1e-8, 2.0)
        assert RULES.waits == {}
        transfer = buffer.transfer()
        rows = transfer.matrix()
    np.testing.assert_array_equal(rows[0], partial(values).numpy())
    np.testing.assert_array_equal(rows[2], rows[0])


@pytest.mark.parametrize("lazy", [False, True])
def test_a_tensor_may_be_overwritten_as_soon_as_it_was_measured(lazy):
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(size, generator=generator) for size in (5, 3000, VALUES + 10)]
    tensors += [tensors[1].bfloat16(), tensors[1].to(torch.float8_e4m3fn), torch.arange(3000), tensors[1][::3]]
    expected = [partial(tensor, kernel="float32").numpy() for tensor in tensors]
    with RULES.set(lazy=lazy):
        buffer = PartialBuffer()
        scale = there(torch.tensor(1024.0))
        for tensor in tensors:
            copy = there(tensor)
            buffer.measure([copy], 1e-8)
            copy.zero_()
        scaled = there(tensors[1] * 1024)
        buffer.measure([scaled], 1e-8, scale)
        scaled.zero_()
        scale.mul_(0.5)
        numbers = there(torch.tensor([3.0, 4.0]))
        handle = buffer.put(numbers)
        numbers.zero_()
        assert RULES.waits == {}
        # Beside the training: what is measured next belongs to the next step.
        transfer = buffer.transfer()
        buffer.measure([there(torch.ones(4))], 1e-8)
        with_more = {}
        thread = threading.Thread(target=lambda: with_more.update(rows=transfer.matrix()))
        thread.start()
        thread.join()
        assert list(RULES.waits) in ([thread.name], [])
        rows = with_more["rows"]
        for found, row in zip(rows, expected, strict=False):
            np.testing.assert_allclose(found, row, rtol=1e-12)
        np.testing.assert_allclose(rows[handle - 1], expected[1], rtol=1e-12)
        assert rows[handle].tolist() == [3, 4, 0, 0, 0, 0, 0, 0]
        assert buffer.transfer().matrix()[0, 0] == 4


@pytest.mark.parametrize("wide", [False, True], ids=["float32 rows", "float64 rows"])
def test_rows_that_several_streams_write(wide, monkeypatch):
    monkeypatch.setattr(kernels, "has_float64", lambda kind: wide)
    monkeypatch.setattr(kernels, "usable_kernels", kernels.usable_kernels.__wrapped__)
    with RULES.set(lazy=True, forbidden=set() if wide else RULES.forbidden):
        buffer = PartialBuffer(kernel="operators" if wide else "float32")
        side = fake.Stream()
        for step in range(3):
            tensor = there(torch.full((3000,), 2.0))
            buffer.measure([tensor], 1e-8)
            side.wait_stream(fake.BACKEND.current_stream())
            with fake.BACKEND.stream(side):
                doubled = tensor * 2
                buffer.measure([doubled], 1e-8)
                buffer.put(doubled[:3])
            with fake.BACKEND.stream(fake.Stream()):
                buffer.put(there(torch.tensor([9.0])))
            buffer.measure([tensor], 1e-8)
            rows = buffer.transfer().matrix()
            assert rows[:2, 6].tolist() == [6000.0, 12000.0], step
            assert rows[2:4, 0].tolist() == [4.0, 9.0]
            assert rows[4, 6] == 6000.0


def test_a_device_without_events_is_waited_for_when_the_rows_are_read(monkeypatch):
    monkeypatch.delattr(fake.Backend, "Event")
    with RULES.set(lazy=True):
        buffer = PartialBuffer()
        buffer.measure([there(torch.full((5,), 3.0))], 1e-8)
        transfer = buffer.transfer()
        assert RULES.waits == {}
        assert transfer.matrix()[0, 6] == 15.0


def test_a_device_that_captures_a_graph():
    buffer = PartialBuffer()
    tensor = there(torch.ones(5))
    buffer.measure([tensor], 1e-8)
    with RULES.set(capturing=True):
        RULES.reset()
        assert buffer.is_capturing()
        assert buffer.measure([tensor, torch.ones(2)], 1e-8) == [-1, 1]
        assert buffer.put(tensor) == -1
        buffer.discard()
        assert RULES.while_capturing == {}
    assert not buffer.is_capturing()
    assert buffer.measure([tensor], 1e-8) == [0]
    assert buffer.transfer().matrix().shape == (1, 8)


def test_memory_that_runs_out_costs_the_tensors_that_it_was_for():
    buffer = PartialBuffer()
    tensor = there(torch.ones(5))
    with RULES.set(out_of_memory=True), pytest.raises(torch.OutOfMemoryError):
        buffer.measure([tensor], 1e-8)
    assert buffer.measure([tensor * 2], 1e-8)[0] >= 0
    with RULES.set(out_of_memory=True), pytest.raises(torch.OutOfMemoryError):
        buffer.peek()
    (handle,) = buffer.measure([tensor * 3], 1e-8)
    rows = buffer.transfer().matrix()
    assert rows[handle, 6] == 15.0
    assert rows[handle - 1, 6] == 10.0


def test_the_choice_of_the_kernel(monkeypatch):
    assert kernels.usable_kernels(fake.NAME) == ("float32",)
    assert kernels.chosen_kernels() == {"cpu": "cpu", fake.NAME: "float32"}
    with pytest.raises(ValueError, match="kernel is 'operators', which cannot be used here; allowed: float32"):
        partial(there(torch.ones(2)), kernel="operators")
    monkeypatch.setenv("MSMON_KERNEL", "operators")
    buffer = PartialBuffer()
    # Forced where it can be.
    assert buffer.measure([torch.ones(2), there(torch.ones(3))], 1e-8) == [0, 1]
    assert buffer.transfer().matrix()[:, 0].tolist() == [2, 3]


def test_float64_that_is_float32_in_silence_is_none(monkeypatch):
    from msmon_stats.torch import devices

    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda tensor, dtype, *rest: to(tensor, torch.float32 if tensor.device.type == fake.NAME else dtype, *rest),
    )
    with RULES.set(forbidden=set()):
        assert not devices.has_float64.__wrapped__(fake.NAME)
        monkeypatch.undo()
        assert devices.has_float64.__wrapped__(fake.NAME)


def test_a_sum_over_the_statistics_of_parts():
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    whole = finalize(partial(there(values))[None].numpy(), ["norm"])
    rows = msmon_stats.partial_many([there(values[:1234]), there(values[1234:])])
    merged = msmon_stats.merge(rows[0], rows[1])
    np.testing.assert_allclose(finalize(merged[None].numpy(), ["norm"]), whole, rtol=1e-7)
