"""Text columns that are read as numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from msmon.reading.text_columns import SHAPE, numbers_of
from msmon_io import FINGERPRINT

TEXTS = ["00000000000000ff", "", "deadbeef01234567", None, "7ff8000000000001", "short"]
BITS = [0xFF, None, 0xDEADBEEF01234567, None, 0x7FF8000000000001, None]


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("part", [slice(0, 6), slice(2, 5), slice(4, 5), slice(1, 2)])
def test_fingerprints(encoded, part):
    column = pa.array(TEXTS).dictionary_encode() if encoded else pa.array(TEXTS)
    values, there = numbers_of(pa.chunked_array([column[part]]), FINGERPRINT)
    found = [bits if known else None for bits, known in zip(values.view(np.uint64).tolist(), there, strict=True)]
    assert found == BITS[part]


def test_fingerprints_in_several_chunks():
    values, there = numbers_of(pa.chunked_array([pa.array(TEXTS[:1]), pa.array(TEXTS[2:3])]), FINGERPRINT)
    assert values.view(np.uint64).tolist() == [BITS[0], BITS[2]]
    assert there.all()


def test_a_part_of_an_array_that_begins_otherwise():
    """Offsets are not those of texts of one length."""
    column = pa.array(["x", TEXTS[0], TEXTS[2]])[1:]
    values, there = numbers_of(pa.chunked_array([column]), FINGERPRINT)
    assert values.view(np.uint64).tolist() == [BITS[0], BITS[2]]
    assert there.all()


def test_shapes_are_elements():
    values, there = numbers_of(pa.chunked_array([pa.array(["[2, 3]", "(4,)", "[]", "?", None])]), SHAPE)
    assert there.tolist() == [True, True, True, False, False]
    assert values[:3].tolist() == [6.0, 4.0, 1.0]


def test_numbers_stay_what_they_are():
    values, there = numbers_of(pa.chunked_array([pa.array([1.0, 2.0])]), "norm")
    assert (values.tolist(), there) == ([1.0, 2.0], True)
    assert numbers_of(pa.chunked_array([pa.array([1.0, None])]), "norm")[1].tolist() == [True, False]
