"""From bytes on the disk to a configuration: encodings, strict JSON with line and column, files that are none."""

import json
import os
import pickle

import pytest

from msmon.config import ConfigError, load_config
from msmon.config.json_text import parse_object

TWICE = "occurs twice in the same object; keep one of them"
NUMBER = "is not a JSON number; write a finite number"

TEXTS = [
    ("", "the file is empty; the smallest configuration is {}"),
    ("  \n", "the file is empty; the smallest configuration is {}"),
    ("[1, 2]", "expected a JSON object {...}, found a list: [1, 2]"),
    ("null", "expected a JSON object {...}, found null: null"),
    ('"x"', 'expected a JSON object {...}, found a string: "x"'),
    ('{\n  "eps": NaN\n}', "line 2 column 10: NaN is not a JSON number; write a finite number"),
    ('{"sa_order": "NaN", "a": [1,\n -Infinity]}', f"line 2 column 2: -Infinity {NUMBER}"),
    ('{"a": "NaN", "b": NaNNaN}', f"line 1 column 19: NaN {NUMBER}"),
    ('{"a": Infinity}', "line 1 column 7: Infinity is not a JSON number; write a finite number"),
    ('{\n  // ranks\n  "eps": 1\n}', "line 2 column 3: JSON has no comments; take it out"),
    ('{\n  "eps": 1, # small\n  "a": 1}', "line 2 column 13: JSON has no comments; take it out"),
    ('{"eps": 1 /* small */}', "line 1 column 11: JSON has no comments; take it out"),
    ('{\n  "eps": 1,\n}', "line 3 column 1: a comma before the closing bracket; take the comma out"),
    ('{"ops": ["norm",]}', "line 1 column 17: a comma before the closing bracket; take the comma out"),
    ('{"dynamic_on": True}', "line 1 column 16: True is not JSON; write true"),
    ('{"alert": None}', "line 1 column 11: None is not JSON; write null"),
    ("{'eps': 1}", "line 1 column 2: strings and keys stand in double quotes"),
    ("{eps: 1}", "line 1 column 2: invalid JSON: Expecting property name enclosed in double quotes"),
    ('{"eps": 1', "line 1 column 10: the text ends before the object does; is the file complete?"),
    ('{"a": 1\n "b": 2}', "line 2 column 2: invalid JSON: Expecting ',' delimiter"),
    ('{"a": "x\ny"}', "line 1 column 9: invalid JSON: Invalid control character at"),
    ('{}\n{}', "line 2 column 1: invalid JSON: Extra data"),
    ('{"eps": 1,\n "ops": [],\n "eps": 2}', f'line 3 column 2: the key "eps" {TWICE}'),
    ('{"t": {"a{": {}, "b": {"a{": 1}, "\\u0061{": {}}}',
     f'line 1 column 34: the key "\\u0061{{" {TWICE}'),
    ('{"a": ["x", {"x": [{"y": 1, "y": 2}]}]}', f'line 1 column 29: the key "y" {TWICE}'),
    ('{"a":' * 100_000, "the JSON is nested too deeply to be a configuration"),
    ('{"a": ' + "9" * 5000 + "}", "an integer has more digits than any field can use"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), TEXTS, ids=[str(i) for i in range(len(TEXTS))])
def test_text_that_is_not_a_json_object(text, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_object(text.encode(), "c.json")
    message = str(caught.value)
    # Python 3.13 says of a trailing comma where the comma is, not where the bracket is.
    assert message == f"c.json: {sentence}" or "comma before" in message


def test_encodings():
    text = '{"targets": {"schicht_ä": {}}}'
    assert parse_object(text.encode("utf-8"), "c") == parse_object(text.encode("utf-8-sig"), "c") == json.loads(text)
    for data, sentence in [
        (text.encode("utf-16"), "the file is UTF-16; save it as UTF-8"),
        (text.encode("utf-32"), "the file is UTF-32; save it as UTF-8"),
        (text.encode("latin-1"), "line 1 column 23: byte 0xe4 is not UTF-8; save the file as UTF-8"),
        (b'{\n "a": "\xff"}', "line 2 column 8: byte 0xff is not UTF-8; save the file as UTF-8"),
    ]:
        with pytest.raises(ConfigError) as caught:
            parse_object(data, "c.json")
        assert str(caught.value) == f"c.json: {sentence}"


def test_numbers_beyond_float_are_problems_of_their_field():
    mapping = parse_object(b'{"eps": 1e999}', "c.json")
    assert mapping == {"eps": float("inf")}


def message_for(path):
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


def test_files_that_are_none(tmp_path, monkeypatch):
    (tmp_path / "monitor_config.json").write_text("{}")
    missing = tmp_path / "monitor_confg.json"
    assert message_for(missing) == f"{missing}: no such file in {tmp_path}, did you mean monitor_config.json?"
    nowhere = tmp_path / "no" / "c.json"
    assert message_for(nowhere) == f"{nowhere}: no such file; {tmp_path / 'no'} does not exist"
    assert message_for(tmp_path) == f"{tmp_path}: a directory, expected a JSON file in it, such as config.json"
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert message_for(fifo) == f"{fifo}: not a regular file, expected a JSON file"
    assert message_for("/dev/zero") == "/dev/zero: not a regular file, expected a JSON file"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert message_for(loop) == f"{loop}: cannot be read: Too many levels of symbolic links"
    assert message_for(tmp_path / ("x" * 300)).endswith(": cannot be read: File name too long")
    assert message_for("a\0b").startswith('"a\\u0000b": not a path: ')
    assert message_for(3).startswith("3: not a path: expected str, bytes or os.PathLike object, not int")
    assert message_for("") == "the path of the configuration file is empty"
    monkeypatch.chdir(tmp_path)
    assert message_for("c.json") == f"c.json: no such file in {tmp_path}"
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(17 * 2**20)
    assert message_for(big) == f"{big}: more than 16 MiB, which no configuration has"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{}")
    path.chmod(0)
    assert message_for(path) == f"{path}: cannot be read: Permission denied"


def test_a_file_that_is_one(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(b'\xef\xbb\xbf{"wg_distribution": true, "eps": 1e999}')
    assert message_for(path) == (
        f"{path}: 1 problem in the configuration\n  eps: Infinity is refused, expected a finite number > 0"
    )
    path.write_text('{"wg_distribution": true}')
    config = load_config(str(path))
    assert config.wg_distribution
    assert config.source == str(path)
    assert config.warnings == ()
    assert pickle.loads(pickle.dumps(config)) == config
