"""Text in CSV cells: names come from models and may hold anything, a cell must stay one harmless cell."""

from __future__ import annotations

import re
from functools import lru_cache

# Control characters, line and paragraph separators, lone surrogates (no UTF-8 form), and the escape character itself.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\\\]")
_ESCAPED = re.compile(r"\\(\\|n|r|t|x[0-9a-f]{2}|u[0-9a-f]{4})")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_LONG = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
# Spreadsheets run what begins with these.
_FORMULA = re.compile("'*[=+@-]")
_ESCAPED_FORMULA = re.compile("'+[=+@-]")
_QUOTE = re.compile('[,"]')
_PLAIN = re.compile(r"[\w.\[][^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\,\"]*", re.ASCII)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    return _LONG.get(code) or chr(int(code[1:], 16))


def encode_new_cell(text: str) -> str:
    """As `encode_cell`, for a text that hardly comes again."""
    if _PLAIN.fullmatch(text):
        return text
    text = _UNSAFE.sub(_escape, text)
    if _FORMULA.match(text):
        text = "'" + text
    if _QUOTE.search(text):
        text = '"' + text.replace('"', '""') + '"'
    return text


# The same names come every step.
@lru_cache(maxsize=1 << 18)
def encode_cell(text: str) -> str:
    r"""The text as one CSV cell on one line.

    Ordinary names come out as they are, quoted where they hold a comma or a quotation mark. Control characters, line
    ends and backslashes become `\n`, `\x1b`, `\\`; text that a spreadsheet would run as a formula gets an
    apostrophe in front. `decode_cell` undoes both.

    >>> [encode_cell(t) for t in ("fc1.weight", "[8, 4]", "a\nb", "=cmd()")]
    ['fc1.weight', '"[8, 4]"', 'a\\nb', "'=cmd()"]
    """
    return encode_new_cell(text)


def decode_cell(text: str) -> str:
    r"""The text that `encode_cell` was given, from a cell whose quotation marks are already off.

    >>> decode_cell("'=cmd()"), decode_cell("a\\nb") == "a\nb"
    ('=cmd()', True)
    """
    if text[:1] == "'" and _ESCAPED_FORMULA.match(text):
        text = text[1:]
    return _ESCAPED.sub(_unescape, text) if "\\" in text else text


def utf8(text: str) -> str:
    r"""The text as UTF-8 can hold it: lone surrogates, which names may have as any Python text, become an escape.

    >>> utf8("fc\ud800")
    'fc\\ud800'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
