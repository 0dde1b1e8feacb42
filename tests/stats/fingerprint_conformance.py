"""What the fingerprints of every back end and every kernel have to be, as one class to inherit from."""

import numpy as np
import pytest

from msmon_stats import fingerprints, merge, partial_many

from . import reference


class FingerprintConformance:
    """For those who inherit from `Conformance` as well."""

    kernel: str

    def content(self, tensor):
        """The number of elements and the bytes of a tensor in row-major order, little-endian."""
        raise NotImplementedError

    def expected(self, tensors):
        return [reference.fingerprint(*self.content(tensor)) for tensor in tensors]

    def found(self, tensors):
        return fingerprints(self.host(partial_many(tensors, 0.5, kernel=self.kernel, fingerprint=True)))

    def numbers(self, dtype, shape, seed=0):
        values = np.random.default_rng(seed).standard_normal(shape) * 30
        if dtype.startswith("complex"):
            values = values * (1 - 2j)
        return self.make(np.abs(values) if dtype.startswith("u") else values, dtype)

    @pytest.mark.parametrize(
        "dtype",
        [
            *("float64", "float32", "float16", "bfloat16", "bool", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
        ],
    )
    def test_fingerprint_of_dtype(self, dtype):
        if dtype in self.missing:
            return
        tensors = [
            self.numbers(dtype, shape, seed) for seed, shape in enumerate([(5, 7, 40), (3,), (1, 1), (2, 0), ()])
        ]
        expected = self.expected(tensors)
        assert self.found(tensors) == expected
        assert [self.found([tensor])[0] for tensor in tensors] == expected
        assert all(len(text) == 16 for text in expected)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
    def test_fingerprint_of_any_size(self, dtype):
        if dtype in self.missing:
            return
        values = self.numbers(dtype, max(self.sizes))
        tensors = [values[:size] for size in self.sizes]
        expected = self.expected(tensors)
        assert self.found(tensors) == expected
        for tensor, text in zip(tensors[-2:], expected[-2:], strict=True):
            assert self.found([tensor]) == [text]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
    def test_fingerprint_of_what_lies_elsewhere(self, dtype):
        if dtype in self.missing:
            return
        # Parts of odd sizes, which begin anywhere in a word.
        views = dict(self.views(self.numbers(dtype, (7, 11, 13))))
        for name, view in views.items():
            assert self.found([view]) == self.expected([view]), name
        assert self.found(list(views.values())) == self.expected(views.values())

    def test_fingerprint_of_what_begins_anywhere(self):
        for dtype in ("uint8", "float16", "float32"):
            flat = self.numbers(dtype, 50)
            parts = [flat[start:] for start in range(5)]
            assert self.found(parts) == self.expected(parts)

    def test_statistics_beside_a_fingerprint(self):
        tensors = [self.numbers("float32", 5000, seed) for seed in range(3)]
        row = self.host(partial_many(tensors, 0.5, kernel=self.kernel))
        wide = self.host(partial_many(tensors, 0.5, kernel=self.kernel, fingerprint=True))
        assert (row.shape, wide.shape) == ((3, 8), (3, 10))
        np.testing.assert_allclose(wide[:, :8], row, rtol=self.repeats)

    def test_zeros_and_nothing(self):
        tensors = [self.make(np.zeros(size), "float32") for size in (0, 1, 2, 3, 3000, 3001)]
        assert self.found(tensors) == [f"{size:016x}" for size in (0, 1, 2, 3, 3000, 3001)]
        assert self.found([self.make(np.array([-0.0]), "float32")]) != self.found(tensors[1:2])

    def test_a_row_with_a_fingerprint_to_write_into(self):
        tensors = [self.numbers("float32", 3000), self.numbers("float32", 1)]
        out = partial_many(tensors, kernel=self.kernel, fingerprint=True)
        partial_many(tensors[::-1], kernel=self.kernel, fingerprint=True, out=out)
        assert fingerprints(self.host(out)) == self.expected(tensors[::-1])
        with pytest.raises(ValueError, match=r"out must be a (?i:.*float64) \[2, 8\]"):
            partial_many(tensors, kernel=self.kernel, out=out)

    def test_parts_have_no_fingerprint_together(self):
        rows = partial_many([self.numbers("float32", 10)] * 2, kernel=self.kernel, fingerprint=True)
        merged = self.host(merge(rows, rows))
        assert fingerprints(merged) == ["", ""]
        assert merged[:, 0].tolist() == [20, 20]
