"""Text from models stays one harmless cell on one line, and comes back as it was."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmon_io.cells import decode_cell, encode_cell

from .tables import HOSTILE_NAMES

any_text = st.text(st.characters(exclude_categories=())) | st.sampled_from(HOSTILE_NAMES)


@settings(deadline=None)
@given(any_text)
def test_round_trip_on_one_line(text: str) -> None:
    cell = encode_cell(text)
    assert len((cell + "\n").splitlines()) == 1
    cell.encode()
    (row,) = csv.reader([f"0,{cell},1"], strict=True)
    assert len(row) == 3
    assert not row[1].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert all(character.isprintable() for character in row[1] if ord(character) < 0xA0)
    assert decode_cell(row[1]) == text


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("model.layers.0.mlp.weight", "model.layers.0.mlp.weight"),
        ("rnn.output_1_0", "rnn.output_1_0"),
        (".input", ".input"),
        ("torch.float32", "torch.float32"),
        ("[8, 4]", '"[8, 4]"'),
        ("[8]", "[8]"),
        ("=cmd()", "'=cmd()"),
        ("a\nb", "a\\nb"),
        ("模型", "模型"),
    ],
)
def test_look(text: str, cell: str) -> None:
    assert encode_cell(text) == cell
