"""Bytes of a file to a JSON object, with line and column for everything that is not strict JSON."""

import codecs
import json
import re
from typing import Any, NoReturn

from msmon.config.problems import ConfigError, kind, shown

# One lexical element of JSON text that has been accepted so far.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_CONSTANTS = ("NaN", "Infinity", "-Infinity")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_OTHER_ENCODINGS = ((codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"))


class _Constant(Exception):
    pass


class _Duplicate(Exception):
    pass


def parse_object(data: bytes, source: str) -> dict[str, Any]:
    """The JSON object in `data` (UTF-8, with or without a byte order mark).

    Raises:
        ConfigError: not UTF-8, not strict JSON (also NaN, Infinity, comments, trailing commas), a key that occurs
            twice in one object, or a value that is not an object. The message has line and column.
    """
    text = _decode(data, source)
    if not text.strip():
        raise ConfigError(f"{source}: the file is empty; the smallest configuration is {{}}")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except _Constant as error:
        constant = str(error)
        position = next(m.start() for m in _TOKEN.finditer(text) if m.group().startswith(constant))
        _fail(source, text, position, f"{constant} is not a JSON number; write a finite number")
    except _Duplicate:
        position, key = _find_duplicate(text)
        _fail(source, text, position, f"the key {key} occurs twice in the same object; keep one of them")
    except json.JSONDecodeError as error:
        _fail(source, text, error.pos, _explain(text, error))
    except RecursionError:
        raise ConfigError(f"{source}: the JSON is nested too deeply to be a configuration") from None
    except ValueError:
        # Python's limit on the digits of an integer; it names no position.
        raise ConfigError(f"{source}: an integer has more digits than any field can use") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: expected a JSON object {{...}}, found {kind(value)}: {shown(value)}")
    return value


def _decode(data: bytes, source: str) -> str:
    for mark, name in _OTHER_ENCODINGS:
        if data.startswith(mark):
            raise ConfigError(f"{source}: the file is {name}; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        where = f"{source}: line {line} column {column}"
        raise ConfigError(f"{where}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _Constant(name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Duplicate
    return found


def _find_duplicate(text: str) -> tuple[int, str]:
    """Position and text of the first key that its object already has."""
    open_objects: list[set[str] | None] = []
    previous = None
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "{[":
            open_objects.append(set() if word == "{" else None)
        elif word in "}]":
            open_objects.pop()
        elif word == ":" and previous is not None and open_objects[-1] is not None:
            key = json.loads(previous.group(), strict=False)
            if key in open_objects[-1]:
                return previous.start(), previous.group()
            open_objects[-1].add(key)
        previous = token
    raise AssertionError("a duplicate key was reported but not found")


def value_span(text: str, key: str) -> tuple[int, int] | None:
    """Where the one-word value (a number, a string, true, false, null) of a key of the outermost object stands.

    `text` is valid JSON. None: there is no such key, or its value is an object or a list.
    """
    depth = 0
    previous: list[str] = ["", ""]
    for token in _TOKEN.finditer(text):
        word = token.group()
        if depth == 1 and previous[1] == ":" and word not in "{[" and json.loads(previous[0]) == key:
            return token.span()
        depth += (word in "{[") - (word in "}]")
        previous = [previous[1], word]
    return None


def _explain(text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos :]
    before = text[: error.pos].rstrip()
    word = next((w for w in _PYTHON_WORDS if rest.startswith(w)), None)
    if rest.startswith(("//", "/*", "#")):
        return "JSON has no comments; take it out"
    if (rest.startswith(("}", "]")) and before.endswith(",")) or "trailing comma" in error.msg:
        return "a comma before the closing bracket; take the comma out"
    if word:
        return f"{word} is not JSON; write {_PYTHON_WORDS[word]}"
    if rest.startswith("'"):
        return "strings and keys stand in double quotes"
    if not rest.strip():
        return "the text ends before the object does; is the file complete?"
    return f"invalid JSON: {error.msg}"


def _fail(source: str, text: str, position: int, message: str) -> NoReturn:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise ConfigError(f"{source}: line {line} column {column}: {message}") from None
