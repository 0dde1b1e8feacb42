"""Reads `anomaly.json` files of any size record by record, and says where a damaged one breaks off."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20
_LONGEST = 1 << 24
_SPACE = re.compile(r"[ \t\n\r]*")


class BrokenFileError(ValueError):
    """A file that is not, or not to its end, a JSON object of records. The message names file and place."""


class RecordReader:
    """Iterates over (key, record) of one file, in their order, in bounded memory.

    Raises BrokenFileError where the file stops making sense; everything before that has been given out. OSError where
    it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._text = ""
        self._at = 0
        """Where to go on in `_text`."""
        self._last = 0
        """Where the last whole record, or the opening brace, ends in `_text`."""
        self._dropped = 0
        """Bytes of the file before `_text`."""
        self._ended = False
        self._decoder = json.JSONDecoder()

    @property
    def end_of_last(self) -> int:
        """Bytes up to the end of the last whole record, or of the opening brace; 0 before that."""
        return self._bytes(self._last)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        with open(self.path, encoding="utf-8", newline="") as self._file:
            self._text, self._at, self._last, self._dropped, self._ended = "", 0, 0, 0, False
            self._expect("{", "an opening brace")
            self._last = self._at
            if self._peek() != "}":
                while True:
                    key = self._value("a key")
                    if not isinstance(key, str):
                        raise self._broken(f"a key is {key!r:.40}, not a string")
                    self._expect(":", "a colon")
                    record = self._value("a record")
                    self._last = self._at
                    yield key, record
                    if self._peek() != ",":
                        break
                    self._at += 1
            self._expect("}", "a comma or a closing brace")
            if self._peek():
                raise self._broken("there is text after the closing brace")

    def _bytes(self, position: int) -> int:
        """Bytes of the file before this position of `_text`."""
        return self._dropped + len(self._text[:position].encode())

    def _more(self) -> bool:
        """Reads on, and drops the records that were given out, so that memory is bounded."""
        if self._ended:
            return False
        try:
            chunk = self._file.read(max(_CHUNK, len(self._text) - self._last))
        except UnicodeDecodeError as error:
            raise self._broken("it is not UTF-8 text") from error
        self._ended = not chunk
        self._dropped = self._bytes(self._last)
        self._text = self._text[self._last :] + chunk
        self._at -= self._last
        self._last = 0
        return bool(chunk)

    def _peek(self) -> str:
        """The next character that is no space; "" at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _expect(self, character: str, what: str) -> None:
        found = self._peek()
        if found != character:
            raise self._broken(f"{what} was expected" + (f", not {found!r}" if found else ", but the file ends"))
        self._at += 1

    def _value(self, what: str) -> Any:
        if not self._peek():
            raise self._broken(f"{what} was expected, but the file ends")
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._at > _LONGEST:
                    raise self._broken(f"{what} is longer than {_LONGEST} characters or broken") from error
                if not self._more():
                    reason = "nested too deeply" if isinstance(error, RecursionError) else "broken"
                    raise self._broken(f"{what} is {reason}") from error

    def _broken(self, reason: str) -> BrokenFileError:
        return BrokenFileError(f"{self.path}: {reason} at byte {self._bytes(self._at)}")


def end_of_records(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """Bytes up to the end of the last whole record, and whether there is none.

    Raises:
        BrokenFileError: not even the opening brace is there.
    """
    reader = RecordReader(path)
    empty = True
    try:
        for _ in reader:
            empty = False
    except BrokenFileError:
        if reader.end_of_last == 0:
            raise
    return reader.end_of_last, empty
