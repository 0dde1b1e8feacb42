"""anomaly.json files of any layout and size, and damaged ones."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmon_alert import reading
from msmon_alert.reading import BrokenFileError, RecordReader

DOCUMENT = {
    'key "with" \\ quotes': {"step": 1, "text": "brace } comma , colon : ü"},
    "empty": {},
    "nested": {"a": [1, 2, {"b": None}], "c": -1.5e-7},
    "no object": 12345,
    "last": {"step": 2},
}


@pytest.fixture(params=[1, 3, 1 << 20])
def chunk(request, monkeypatch):
    """However the file is cut into pieces while reading."""
    monkeypatch.setattr(reading, "_CHUNK", request.param)


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("layout", [{}, {"indent": 4}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_every_layout(tmp_path, layout):
    for document in (DOCUMENT, {}, {"a": {"b": 1}}):
        text = json.dumps(document, **layout)
        for around in ("", "\n", " \r\n\t"):
            path = write(tmp_path / "a.json", around + text + around)
            assert dict(RecordReader(path)) == document


@pytest.mark.usefixtures("chunk")
def test_cut_off_anywhere(tmp_path):
    """What is whole before the cut comes out; the rest is an error with a place."""
    text = json.dumps(DOCUMENT, indent=1, ensure_ascii=False).encode()
    items = list(DOCUMENT.items())
    for cut in range(len(text)):
        found = []
        with pytest.raises(BrokenFileError, match=r"a\.json: .* at byte \d+"):
            found.extend(_collect(RecordReader(write(tmp_path / "a.json", text[:cut])), found))
        for (key, value), (expected_key, expected) in zip(found, items, strict=False):
            assert key == expected_key
            # a number that is cut off is still a number
            assert value == expected or (isinstance(value, int) and str(expected).startswith(str(value)))


def _collect(reader, into):
    for pair in reader:
        into.append(pair)
    return []


@pytest.mark.parametrize(
    ("data", "reason", "byte"),
    [
        (b"", "an opening brace was expected, but the file ends", 0),
        (b"  \n", "an opening brace was expected, but the file ends", 3),
        (b"[]", "an opening brace was expected, not '['", 0),
        (b"{1: 2}", "a key is 1, not a string", 2),
        (b'{"a" 2}', "a colon was expected, not '2'", 5),
        (b'{"a": }', "a record is broken", 6),
        (b'{"a": {}, }', "a key is broken", 10),
        (b'{"a": {} "b": {}}', "a comma or a closing brace was expected, not '\"'", 9),
        (b'{"a": {}} {', "there is text after the closing brace", 10),
        (b'{"a": {"b": \xff}}', "it is not UTF-8 text", 0),
        (b"\x00\x01\x02", "an opening brace was expected, not '\\x00'", 0),
        (b'{"a": ' + b"[" * 100_000, "a record is nested too deeply", 6),
        (b'{"a": ' + b"9" * 10_000 + b"}", "a record is broken", 6),
    ],
)
def test_damage_is_named_with_its_place(tmp_path, data, reason, byte):
    path = write(tmp_path / "anomaly.json", data)
    with pytest.raises(BrokenFileError) as caught:
        list(RecordReader(path))
    assert str(caught.value) == f"{path}: {reason} at byte {byte}"


def test_one_record_does_not_eat_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_LONGEST", 1000)
    monkeypatch.setattr(reading, "_CHUNK", 100)
    path = write(tmp_path / "a.json", '{"a": {"b": "' + "x" * 100_000)
    with pytest.raises(BrokenFileError, match="a record is longer than 1000 characters or broken at byte 6"):
        list(RecordReader(path))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_bytes_give_records_or_one_clear_error(tmp_path_factory, data):
    text = bytearray(json.dumps(DOCUMENT).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(text) - 1))
        text[position] = data.draw(st.integers(0, 255))
    path = write(tmp_path_factory.getbasetemp() / "changed.json", bytes(text))
    try:
        expected = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        expected = None
    try:
        found = [key for key, _ in RecordReader(path)]
    except BrokenFileError:
        assert expected is None
    else:
        assert expected is not None
        assert found == [key for key, _ in expected]
