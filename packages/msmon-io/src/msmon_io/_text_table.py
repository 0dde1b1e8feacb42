"""Small CSV files of text that are written once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msmon_io._cells import encode_cell
from msmon_io._files import PathLike, inside, write_whole


def write_text_table(path: PathLike, columns: Sequence[str], rows: Iterable[Sequence[str]], *, root: PathLike) -> None:
    """Write a CSV file with a header line: the old one or the whole new one at any moment. Mode 0640.

    Args:
        path: the file; its directory exists.
        columns: the header.
        rows: one text for each column. Cells are made harmless like those of all our files.
        root: the directory that ``path`` must not leave, with links followed.

    Raises:
        OutsideError: the directory of ``path`` is not inside ``root``.
        OSError: what the file system says.

    >>> import tempfile, pathlib
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> write_text_table(directory / "names.csv", ["name", "stack"], [["0:fc", "File a.py"]], root=directory)
    >>> print((directory / "names.csv").read_text(), end="")
    name,stack
    0:fc,File a.py
    """
    target = Path(os.path.abspath(path))
    inside(target.parent, root)
    lines = [",".join(map(encode_cell, row)) + "\n" for row in [columns, *rows]]
    write_whole(target, "".join(lines).encode("utf-8", "backslashreplace"))
