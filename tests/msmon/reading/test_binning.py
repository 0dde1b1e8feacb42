"""Thinning keeps the worst value; what float32 or 16 bits cannot hold does not turn into something else."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from msmon.reading.binning import (
    MISSING,
    NAN,
    bin_blocks,
    coarsen,
    make_bins,
    to_float,
    worst_of_groups,
    worst_over,
)
from msmon.reading.blocks import Block
from msmon.reading.page.blobs import to_bfloat16

STATS = ("norm", "min", "mean")
finite32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


def worst(stat: str, values: list[float]) -> float | None:
    """What one value should stand for several, the slow way."""
    if not values:
        return None
    if any(math.isnan(v) for v in values):
        return math.nan
    if stat == "norm":
        return max(values)
    return min(values) if stat == "min" else max(values, key=lambda v: (abs(v), v))


def same(bits: np.uint32, value: float | None) -> bool:
    if value is None:
        return bits == MISSING
    if math.isnan(value):
        return bits == NAN
    number = np.array([bits]).view(np.float32)[0]
    return number == np.float32(value) or (abs(value) == abs(float(number)))


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(np.float64, (3, 7, 4), elements=finite32),
    present=hnp.arrays(np.bool_, (3, 7, 4)),
    limit=st.integers(1, 8),
    split=st.integers(1, 4),
)
def test_every_bin_and_tensor_has_its_worst_value(
    values: np.ndarray, present: np.ndarray, limit: int, split: int
) -> None:
    values = np.where(present, values, np.nan)
    steps = np.arange(10, 80, 10)
    bins = make_bins(steps, limit)
    assert len(bins) <= limit
    length = split * bins.width
    blocks = [
        Block(first=i, values=values[:, i : i + length], present=present[:, i : i + length])
        for i in range(0, 7, length)
    ]
    # Rows 0 and 2 are two micro-steps of one tensor.
    row_tensor = np.array([1, 0, 1, 2])
    found = bin_blocks(blocks, STATS, bins, row_tensor, 3)
    for number, stat in enumerate(STATS):
        for tensor in range(3):
            for at, start in enumerate(bins.starts):
                where = slice(start, start + bins.width)
                inside = values[number, where][:, row_tensor == tensor][present[number, where][:, row_tensor == tensor]]
                assert same(found[number, tensor, at], worst(stat, inside.tolist()))
    # Doing it in two stages comes to the same.
    fine = bin_blocks([Block(first=0, values=values, present=present)], STATS, make_bins(steps, 7), row_tensor, 3)
    for number, stat in enumerate(STATS):
        ours, theirs = coarsen(fine, STATS, bins.width)[number], found[number]
        assert np.array_equal(ours & 0x7FFFFFFF, theirs & 0x7FFFFFFF), stat


def test_the_worst_of_ranks_and_of_layers() -> None:
    def bits(*values: float) -> np.ndarray:
        return np.array(values, dtype=np.float32).view(np.uint32).reshape(1, 2, -1)

    a, b = bits(1, -5, 2, 3), bits(4, 2, math.nan, 1)
    b[0, 1, 1] = MISSING
    together = worst_over([a, b], ("mean",))
    assert together[0, 1, 0] == NAN
    assert to_float(together)[0].ravel()[[0, 1, 3]].tolist() == [4, -5, 3]
    layers = worst_of_groups(a, ("mean",), np.array([0, 0]), 1)
    assert to_float(layers).tolist() == [[[2, -5]]]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e300, np.finfo(np.float32).max),
        (-1e300, -np.finfo(np.float32).max),
        (1e-60, 1.4e-45),
        (0.0, 0.0),
        (math.inf, math.inf),
    ],
)
def test_values_beyond_float32(value: float, shown: float) -> None:
    block = Block(first=0, values=np.array([[[value]]]), present=np.array([[[True]]]))
    found = bin_blocks([block], ("mean",), make_bins(np.array([0]), 1), np.array([0]), 1)
    assert to_float(found)[0, 0, 0] == pytest.approx(shown, rel=1e-2)


@given(st.floats(width=32))
def test_sixteen_bits_keep_three_digits_and_the_kind_of_number(value: float) -> None:
    bits = np.array([value], dtype=np.float32).view(np.uint32)
    back = (to_bfloat16(bits).astype(np.uint32) << 16).view(np.float32)[0]
    if math.isfinite(value):
        assert math.isfinite(back)
        assert back == pytest.approx(value, rel=2**-8, abs=1e-40)
    else:
        assert math.isnan(back) == math.isnan(value)
        assert math.isnan(value) or back == value


def test_missing_stays_apart_from_nan_in_sixteen_bits() -> None:
    nan, missing = to_bfloat16(np.array([NAN, MISSING], dtype=np.uint32))
    assert nan != missing
    assert int(missing) << 16 == MISSING
