"""Arrays, by numpy alone and by the compiled kernel."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from msmon_stats import fingerprint, fingerprints, partial, partial_many

from . import reference
from .conformance import Conformance, normal
from .fingerprint_conformance import FingerprintConformance


class ArrayConformance(FingerprintConformance, Conformance):
    missing = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

    def make(self, values, dtype):
        return np.asarray(values).astype(dtype)

    def exact(self, tensor):
        return np.abs(tensor).astype(np.float64) if tensor.dtype.kind == "c" else tensor.astype(np.float64)

    def content(self, tensor):
        return tensor.size, tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()

    def views(self, tensor):
        record = np.zeros(100, dtype=[("flag", "u1"), ("value", "f4")])
        record["value"] = normal(100)
        return [
            ("transposed", tensor.T),
            ("permuted", tensor.transpose(1, 2, 0)),
            ("every second", tensor[::2]),
            ("a column", tensor[:, 1]),
            ("a last axis", tensor[..., 2]),
            ("reversed", tensor[:, ::-1, ::-1]),
            ("reversed and permuted", tensor[::-1].transpose(2, 0, 1)),
            ("expanded", np.broadcast_to(tensor[:, None], (4, 2, *tensor.shape[1:])) if len(tensor) == 4 else tensor),
            ("broadcast", np.broadcast_to(tensor[0, 0], (9, 3, tensor.shape[2]))),
            ("overlapping", np.lib.stride_tricks.sliding_window_view(tensor[0], 3, axis=1)),
            ("other byte order", tensor.astype(tensor.dtype.newbyteorder())),
            ("one of them", tensor[1, 2, 3]),
            ("unaligned field of a record", record["value"]),
        ]

    def unsupported(self):
        return [
            (np.array(["a", "b"]), "not numbers"),
            (np.array([None, 1]), "not numbers"),
            (np.array(["2020-01-01"], dtype="M8[D]"), "not numbers"),
        ]


@settings(deadline=None)  # a kernel is compiled for each dtype
@given(
    content=arrays.arrays("u1", st.integers(1, 700), fill=st.nothing()),
    start=st.integers(0, 7),
    dtype=st.sampled_from(["u1", "f2", "f4", "f8", "i4", "c8"]),
    at=st.integers(0, 2**31),
    kernel=st.sampled_from(["cpu", "operators"]),
)
def test_fingerprints_of_any_content(content, start, dtype, at, kernel):
    whole = len(content) - start - (len(content) - start) % np.dtype(dtype).itemsize
    if whole <= 0:
        return
    values = content[start : start + whole].copy().view(dtype)
    flipped = values.copy()
    flipped.view("u1")[at % whole] ^= 1 << at % 8
    twice = np.repeat(values, 2)[::2]
    found = fingerprints(partial_many([values, flipped, twice], kernel=kernel, fingerprint=True))
    assert found[0] == found[2] == reference.fingerprint(values.size, values.tobytes())
    assert found[1] == reference.fingerprint(values.size, flipped.tobytes()) != found[0]


def test_flips_of_the_same_bit_do_not_cancel():
    for dtype in ("u4", "u2", "u1", "u8"):
        zeros = np.zeros(40, dtype)
        for bit in (0, zeros.itemsize * 8 - 1):
            for one, other in combinations(range(len(zeros)), 2):
                flipped = zeros.copy()
                flipped[[one, other]] ^= zeros.dtype.type(1 << bit)
                assert fingerprints(partial_many([flipped], fingerprint=True)) != fingerprints(
                    partial_many([zeros], fingerprint=True)
                )


def test_small_changes_of_two_words_do_not_cancel():
    # The smallest changes of two words that cancel are the shortest vector of a lattice.
    for distance in range(1, 2000):
        one, other = (1 << 64, 0), (-fingerprint.power(distance) % (1 << 64), 1)
        while True:
            if math.hypot(*one) < math.hypot(*other):
                one, other = other, one
            times = round(Fraction(one[0] * other[0] + one[1] * other[1], other[0] ** 2 + other[1] ** 2))
            if not times:
                break
            one = (one[0] - times * other[0], one[1] - times * other[1])
        assert max(map(abs, other)) > 1 << 24


def test_extended_precision_has_no_fingerprint():
    if np.dtype(np.longdouble).itemsize > 8:
        for kernel in ("cpu", "operators"):
            rows = partial_many([np.ones(3, np.longdouble), np.ones(3)], kernel=kernel, fingerprint=True)
            assert fingerprints(rows) == ["", reference.fingerprint(3, np.ones(3).tobytes())]
    with pytest.raises(ValueError, match=r"have the shape \[n, 10\], not \[1, 8\]"):
        fingerprints(partial_many([np.ones(3)]))


class TestNumpyOperators(ArrayConformance):
    kernel = "operators"


class TestNumpyCompiled(ArrayConformance):
    kernel = "cpu"

    @settings(suppress_health_check=[HealthCheck.too_slow])  # it is no finding that the machine is busy
    @given(
        values=arrays.arrays(
            dtype=st.sampled_from(["f4", "f8", "f2", "i4", "u1"]), shape=st.integers(0, 300), fill=st.nothing()
        ),
        eps=st.sampled_from([1e-8, 1.0, 0.0, 1e30]),
        start=st.integers(0, 5),
    )
    def test_any_values(self, values, eps, start):
        part = values[start:]
        with np.errstate(all="ignore"):
            row, expected = partial(part, eps, kernel="cpu"), reference.partials(part, eps)
        np.testing.assert_array_equal(row[:6], expected[:6])
        if np.isfinite(expected).all():
            wide = part.astype(np.float64)
            np.testing.assert_allclose(row[6], expected[6], atol=1e-13 * np.nansum(np.abs(wide)))
            np.testing.assert_allclose(row[7], expected[7], rtol=1e-12, atol=5e-324)


@pytest.mark.parametrize("kernel", ["cpu", "operators"])
def test_64_million_values(kernel):
    size = 64 * 2**20
    values = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    values += np.float32(0.01)
    row = partial(values, kernel=kernel)
    exact_sum = exact_squares = 0.0
    for chunk in np.split(values.reshape(64, -1), 64):
        wide = chunk.astype(np.float64)
        exact_sum += wide.sum()
        exact_squares += np.square(wide).sum()
    assert row[0] == size
    assert row[6] / size == pytest.approx(exact_sum / size, rel=1e-6)
    assert np.sqrt(row[7]) == pytest.approx(np.sqrt(exact_squares), rel=1e-6)
    assert (row[4], row[5]) == (values.min(), values.max())


def test_extended_precision_and_scalars():
    if np.dtype(np.longdouble).itemsize > 8:
        assert partial(np.array([1.5, -2.5], dtype=np.longdouble)).tolist() == [2, 0, 0, 0, -2.5, 1.5, -1.0, 8.5]
    assert partial(np.float32(3.0)).tolist() == [1, 0, 0, 0, 3, 3, 3, 9]
    with pytest.raises(TypeError, match=r"no statistics of a builtins\.list: .* mindspore, numpy, torch"):
        partial([1.0, 2.0])
