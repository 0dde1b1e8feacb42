"""What every back end and every kernel has to give, as one class to inherit from."""

from itertools import pairwise

import numpy as np
import pytest

import msmon_stats
from msmon_stats import (
    OPS,
    UnsupportedTensorError,
    finalize,
    merge,
    partial,
    partial_many,
    summarize,
    unsupported_reason,
)

from . import reference

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
OTHERS = ("float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
# Around the lanes, the unrolled loop, the block and the piece of every kernel.
SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000, 2047, 2049, 4095, 4096, 4097, 16384, 16385)
FAR_APART = (2**17 - 1, 2**17 + 1, 300_001)


def normal(size, seed=0, scale=3.0):
    return np.random.default_rng(seed).standard_normal(size) * scale


class Conformance:
    """Inherit, set ``kernel``, and say how a tensor is made and read."""

    kernel: str
    missing: tuple[str, ...] = ()
    """Dtypes that the framework does not have."""
    sizes = SIZES + FAR_APART
    many_values = 1_000_000
    rtol = 1e-12
    flushes_denormals = staticmethod(lambda: False)
    """Whether the framework's own comparisons take denormal numbers for 0."""
    """Of sums. Counts and extremes are exact."""
    repeats = 0.0
    """How far the sums of a tensor may differ by what else is read in the same call."""

    def make(self, values, dtype):
        """A tensor of these float64 (or complex128) values, rounded to the dtype."""
        raise NotImplementedError

    def exact(self, tensor):
        """The values of a tensor as float64, of complex ones the absolute value."""
        raise NotImplementedError

    def host(self, result):
        """A result on the host."""
        return np.asarray(result)

    def views(self, tensor):
        """Other arrangements of a 3-D tensor: name and tensor."""
        raise NotImplementedError

    def check(self, tensor, eps=0.5, rtol=None):
        rtol = rtol or self.rtol
        row = self.host(partial(tensor, eps, kernel=self.kernel))
        assert row.dtype == np.float64
        assert row.shape == (8,)
        exact = self.exact(tensor)
        expected = reference.partials(exact, eps)
        # A sum of numbers of both signs is as exact as the sum of their sizes allows.
        atol = rtol * np.nansum(np.abs(exact[np.isfinite(exact)]))
        np.testing.assert_allclose(row, expected, rtol=rtol, atol=atol)
        np.testing.assert_array_equal(row[:6], expected[:6])
        return row

    @pytest.mark.parametrize("dtype", FLOATS + INTEGERS + OTHERS)
    def test_dtype(self, dtype):
        if dtype in self.missing:
            with pytest.raises((AttributeError, TypeError, KeyError)):
                self.make(np.zeros(1), dtype)
            return
        values = normal((5, 7, 40))
        if dtype.startswith("complex"):
            values = values + 1j * normal((5, 7, 40), seed=1)
        elif dtype in INTEGERS:
            values = np.abs(values) * 10 if dtype.startswith("u") else values * 10
        tensor = self.make(values, dtype)
        self.check(tensor, rtol=1e-6 if dtype.startswith("complex") else None)
        if dtype not in INTEGERS and "e4m3" not in dtype:
            values[0, 0, 0], values[1, 2, 3], values[2, 2, 2] = np.nan, np.inf, -np.inf
            row = self.host(partial(self.make(values, dtype), 0.5, kernel=self.kernel))
            assert row[:3].tolist() == [1400.0, 1.0, 2.0]

    def test_extremes_of_integers(self):
        for dtype in INTEGERS[1:]:
            if dtype in self.missing:
                continue
            limits = np.iinfo(dtype)
            values = np.array([limits.min, limits.max, 0, 1], dtype=dtype)
            row = self.host(partial(self.make_integers(values), kernel=self.kernel))
            assert row[3] == (values == 0).sum()
            assert row[4] == float(limits.min)
            assert row[5] == float(limits.max)

    def make_integers(self, values):
        return self.make(values, values.dtype.name)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
    def test_sizes(self, dtype):
        if dtype in self.missing:
            return
        values = normal(max(self.sizes))
        for size in self.sizes:
            self.check(self.make(values[:size], dtype))

    def test_empty_and_0_d(self):
        for shape in ((0,), (3, 0), (0, 2, 5)):
            row = self.host(partial(self.make(np.zeros(shape), "float32"), kernel=self.kernel))
            assert row.tolist() == [0, 0, 0, 0, np.inf, -np.inf, 0, 0]
        row = self.host(partial(self.make(np.array(-2.5), "float32"), kernel=self.kernel))
        assert row.tolist() == [1, 0, 0, 0, -2.5, -2.5, -2.5, 6.25]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_layouts(self, dtype):
        if dtype in self.missing:
            return
        tensor = self.make(normal((30, 40, 50)), dtype)
        for name, view in self.views(tensor):
            exact = self.exact(view)
            row = self.host(partial(view, 0.5, kernel=self.kernel))
            expected = reference.partials(exact, 0.5)
            atol = self.rtol * np.abs(exact).sum()
            np.testing.assert_allclose(row, expected, rtol=self.rtol, atol=atol, err_msg=name)

    def test_nan_and_inf_anywhere(self):
        values = normal(200)
        for position in (*range(0, 70, 3), 199):
            for bad in (np.nan, np.inf, -np.inf):
                changed = values.copy()
                changed[position] = bad
                row = self.check(self.make(changed, "float32"))
                assert row[1] == np.isnan(bad)
                assert row[2] == np.isinf(bad)

    def test_nothing_but_nan_and_inf(self):
        nan = self.host(partial(self.make(np.full(100, np.nan), "float32"), kernel=self.kernel))
        assert nan.tolist() == [100, 100, 0, 0, np.inf, -np.inf, 0, 0]
        inf = self.host(partial(self.make(np.full(100, -np.inf), "float32"), kernel=self.kernel))
        assert inf.tolist() == [100, 0, 100, 0, -np.inf, -np.inf, -np.inf, np.inf]

    def test_statistics_of_a_tensor_with_nan(self):
        values = normal(5000)
        values[4321] = np.nan
        found = summarize(self.make(values, "float32"), OPS, kernel=self.kernel)
        assert [name for name, value in found.items() if np.isnan(value)] == [
            "min",
            "max",
            "mean",
            "norm",
            "std",
            "rms",
            "absmax",
        ]
        assert (found["nans"], found["infs"], found["zeros"]) == (1.0, 0.0, 0.0)

    def test_statistics_against_numpy(self):
        for dtype in ("float32", "float16", "bfloat16", "int32"):
            if dtype in self.missing:
                continue
            tensor = self.make(normal((100, 77), seed=3) * 5, dtype)
            found = summarize(tensor, OPS, 0.5, kernel=self.kernel)
            expected = reference.statistics(self.exact(tensor), 0.5)
            assert found == pytest.approx(expected, rel=max(1e-9, self.rtol))

    def test_squares_beyond_single_and_half_precision(self):
        for dtype, size in (("float32", 1e30), ("float32", 1e-30), ("float16", 60000.0), ("bfloat16", 1e30)):
            if dtype in self.missing:
                continue
            tensor = self.make(np.full(3000, size), dtype)
            exact = self.exact(tensor)
            norm = summarize(tensor, ["norm"], kernel=self.kernel)["norm"]
            assert norm == pytest.approx(np.sqrt(np.square(exact).sum()), rel=1e-6)

    def test_denormals(self):
        smallest = np.float64(np.finfo(np.float32).smallest_subnormal)
        tensor = self.make(np.array([smallest, -3 * smallest, 0.0, 1e-40] * 50), "float32")
        if self.flushes_denormals():
            row = self.check(tensor, eps=float(np.finfo(np.float32).smallest_normal))
            assert row[3] == 200
            assert self.host(partial(tensor, smallest, kernel=self.kernel))[3] == 200
        else:
            row = self.check(tensor, eps=smallest)
            assert row[3] == 50

    def test_a_sum_that_overflows_is_no_nan(self):
        if "float64" in self.missing:
            return
        row = self.host(partial(self.make(np.full(10, 1.5e308), "float64"), kernel=self.kernel))
        assert row.tolist() == [10, 0, 0, 0, 1.5e308, 1.5e308, np.inf, np.inf]
        assert finalize(row[None], ["nans", "mean"]).tolist() == [[0.0, np.inf]]

    def test_zeros_are_below_eps_and_nothing_else(self):
        # 0.1 is no float32: its two neighbours lie on either side of it.
        above = np.float32(0.1)
        below = np.nextafter(above, np.float32(0))
        values = np.array([above, below, -above, -below, 0.0, -0.0, np.nan])
        for eps, zeros in (
            (0.1, 4),
            (float(above), 4),
            (float(below), 2),
            (0.0, 0),
            (1e300, 6),
            (1e-300, 2),
            (np.inf, 6),
        ):
            row = self.host(partial(self.make(values, "float32"), eps, kernel=self.kernel))
            assert row[3] == zeros, eps

    def test_chunks_merge_to_the_whole(self):
        values = normal(self.many_values, seed=5) + 1.0
        tensor = self.make(values, "float32")
        whole = self.host(partial(tensor, 0.5, kernel=self.kernel))
        for chunks in (1, 4, 1000):
            bounds = np.linspace(0, len(values), chunks + 1).astype(int).tolist()
            parts = [tensor[a:b] for a, b in pairwise(bounds)]
            rows = partial_many(parts, 0.5, kernel=self.kernel)
            while len(rows) > 1:
                half = len(rows) // 2
                merged = merge(rows[:half], rows[half : 2 * half])
                if len(rows) % 2:
                    first = merge(merged[0], rows[2 * half])
                    merged[0] = first
                rows = merged
            np.testing.assert_allclose(self.host(rows[0]), whole, rtol=self.rtol)

    def test_std_far_from_zero(self):
        dtype = "float32" if "float64" in self.missing else "float64"
        tensor = self.make(1e4 + normal(self.many_values, seed=6, scale=1.0), dtype)
        exact = self.exact(tensor)
        assert abs(exact.mean() / exact.std()) > 9.9e3
        found = summarize(tensor, ["std"], kernel=self.kernel)["std"]
        assert found == pytest.approx(exact.std(ddof=1), rel=1e-6)

    def test_many_at_once_give_what_each_gives_alone(self):
        dtypes = [dtype for dtype in ("float32", "bfloat16", "int32", "bool", "complex64") if dtype not in self.missing]
        tensors = [
            self.make(normal(size, seed=i), dtypes[i % len(dtypes)])
            for i, size in enumerate((5, 0, 1000, 1, 70000, 64, 33))
        ]
        view = dict(self.views(self.make(normal((4, 6, 8)), "float32")))
        tensors += list(view.values())
        rows = self.host(partial_many(tensors, 0.5, kernel=self.kernel))
        assert rows.shape == (len(tensors), 8)
        for row, tensor in zip(rows, tensors, strict=True):
            alone = self.host(partial(tensor, 0.5, kernel=self.kernel))
            np.testing.assert_allclose(row, alone, rtol=self.repeats)

    def test_a_row_to_write_into(self):
        tensor = self.make(np.array([3.0, -4.0]), "float32")
        out = partial_many([tensor, tensor], kernel=self.kernel)
        again = partial_many([self.make(np.array([1.0]), "float32"), tensor], out=out, kernel=self.kernel)
        assert again is out
        assert self.host(out)[:, 0].tolist() == [1.0, 2.0]
        with pytest.raises(ValueError, match=r"out must be a (?i:.*float64) \[3, 8\]"):
            partial_many([tensor] * 3, out=out, kernel=self.kernel)

    def test_no_tensors(self):
        with pytest.raises(ValueError, match="at least one tensor"):
            partial_many([])
        assert msmon_stats.summarize_many([], ["norm"]) == []

    def unsupported(self):
        """Values without statistics, each with a part of the reason."""
        raise NotImplementedError

    def test_unsupported_values_are_refused_before_anything_is_written(self):
        good = self.make(np.array([1.0, 2.0]), "float32")
        out = partial_many([good, good], kernel=self.kernel)
        for bad, reason in self.unsupported():
            assert reason in unsupported_reason(bad)
            for call in (
                lambda bad=bad: partial(bad, kernel=self.kernel),
                lambda bad=bad: partial_many([good, bad], out=out, kernel=self.kernel),
                lambda bad=bad: summarize(bad, ["norm"], kernel=self.kernel),
            ):
                with pytest.raises(UnsupportedTensorError, match=reason):
                    call()
        assert unsupported_reason(good) is None
        assert self.host(out)[1].tolist() == [2, 0, 0, 0, 1, 2, 3, 5]

    def test_an_unknown_kernel(self):
        tensor = self.make(np.zeros(2), "float32")
        with pytest.raises(ValueError, match="kernel is 'fastest'; allowed: operators, cpu, triton, float32"):
            partial(tensor, kernel="fastest")
