"""Reads docstrings for the site, an extension of griffe: they are Markdown, and examples (`>>>`) get a fence."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ \t]*)>>> .*(?:\n(?![ \t]*$).*)*", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """The docstring as Markdown.

    >>> print(as_markdown("See `Clock`.\\n\\n>>> 1 + 1\\n2\\n"))
    See `Clock`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    """
    return EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", docstring)


class MarkdownDocstrings(griffe.Extension):
    """Changes each docstring when it has been found."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """A module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
