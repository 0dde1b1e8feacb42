"""The number format: decimals from 1 on, significant digits below, and the same text from the bulk formatter."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from msmon_io.bulk_numbers import number_rows, text_words
from msmon_io.numbers import MAX_BULK_DIGITS, format_count, format_number


def number_lines(values: np.ndarray, is_count: list[bool], ndigits: int) -> list[str]:
    """The bulk formatter's lines."""
    return b"".join(number_rows(values, is_count, ndigits)).decode().split("\n")[:-1]


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(finite, st.integers(1, 17))
@example(0.99999999, 6)
@example(-0.97, 1)
@example(5e-324, 3)
@example(1.7976931348623157e308, 12)
@example(2.5, 1)
def test_rounding(value: float, ndigits: int) -> None:
    text = format_number(value, ndigits)
    # The step of the last digit kept, in exact arithmetic; half of it may be lost.
    exponent = -ndigits if abs(value) >= 1 or value == 0 else Decimal(value).adjusted() - ndigits + 1
    error = abs(Decimal(text) - Decimal(value))
    spacing = Decimal(math.ulp(value))
    assert error <= Decimal(5).scaleb(exponent - 1) + spacing
    assert (value == 0) == (float(text) == 0), "a small value was written as 0"
    assert text == repr(float(text)), "not the look of a Python float"


@pytest.mark.parametrize(
    ("value", "ndigits", "text"),
    [
        (1.2e-9, 6, "1.2e-09"),
        (0.000123456789, 6, "0.000123457"),
        (1234.5678901234, 6, "1234.56789"),
        (1.0, 12, "1.0"),
        (-0.0, 6, "-0.0"),
        (123456789012.5, 3, "123456789012.5"),
        (0.40000000596046448, 12, "0.40000000596"),
        (1e22, 6, "1e+22"),
        (math.nan, 6, "nan"),
        (math.inf, 6, "inf"),
        (-math.inf, 6, "-inf"),
    ],
)
def test_look(value: float, ndigits: int, text: str) -> None:
    assert format_number(value, ndigits) == text
    assert number_lines(np.array([[value]]), [False], ndigits) == [text]


def test_counts_are_integers() -> None:
    values = [0.0, 3.0, 1e6, 123456789.0, 2.0**52, 1e20, math.nan, math.inf, 2.5, -1.0]
    texts = ["0", "3", "1000000", "123456789", "4503599627370496", "1e+20", "nan", "inf", "2.5", "-1"]
    assert [format_count(value) for value in values] == texts
    assert number_lines(np.array([values]).T, [True], 6) == texts


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats() | st.floats(-10, 10) | st.floats(-(2**-10), 2**-10, width=32), min_size=1, max_size=60),
    st.integers(1, MAX_BULK_DIGITS),
)
def test_bulk_is_the_same_text(values: list[float], ndigits: int) -> None:
    assert number_lines(np.array([values]).T, [False], ndigits) == [format_number(value, ndigits) for value in values]


def test_bulk_on_many_magnitudes() -> None:
    random = np.random.default_rng(0)
    values = np.concatenate(
        [
            random.normal(size=4000) * 10.0 ** random.integers(-120, 17, 4000),
            random.integers(-2000, 2000, 2000) / 1024,
            10.0 ** np.arange(-99, 16),
            np.nextafter(10.0 ** np.arange(-99, 16), 0),
            np.round(random.normal(size=2000), 3),
        ]
    )
    whole = np.floor(np.abs(values) * 1000)
    for ndigits in (1, 2, 5, 6, 8, 12, MAX_BULK_DIGITS):
        lines = number_lines(np.stack([values, whole], 1), [False, True], ndigits)
        expected = [f"{format_number(a, ndigits)},{format_count(b)}" for a, b in zip(values, whole, strict=True)]
        assert lines == expected


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_bulk_rows_with_columns_of_zeros(rows: int, columns: int, data: st.DataObject) -> None:
    value = st.sampled_from([0.0, 0.0, 0.0, -0.0, 3.0, 0.5, math.nan, 1e6])
    values = np.array([[data.draw(value) for _ in range(columns)] for _ in range(rows)])
    values[:, data.draw(st.lists(st.integers(0, columns - 1)))] = 0
    is_count = [data.draw(st.booleans()) for _ in range(columns)]
    expected = [
        ",".join(format_count(x) if count else format_number(x, 6) for x, count in zip(row, is_count, strict=True))
        for row in values.tolist()
    ]
    assert number_lines(values, is_count, 6) == expected


def test_rows_begin_with_texts() -> None:
    names = text_words(["0,layer.0.weight,", "1,模型,", "2,x,"])
    micro_steps = text_words(["0,", "10,", "2,"])
    blocks = number_rows(
        np.array([[0.0, 0.5, 0.0], [0, 2, 0], [0, -1, 0]]), [True, False, False], 3, [names, "7,", micro_steps]
    )
    lines = b"".join(blocks).decode().splitlines()
    assert lines == ["0,layer.0.weight,7,0,0,0.5,0.0", "1,模型,7,10,0,2.0,0.0", "2,x,7,2,0,-1.0,0.0"]
    assert b"".join(number_rows(np.zeros((2, 1)), [True], 3, ["a,"])) == b"a,0\na,0\n"
    assert number_rows(np.zeros((0, 2)), [True, False], 3) == []
