"""Files that are there as a whole or not at all.

`msmon_io.files` does the same for the rest of the workspace. This package works alone, and the two never import each
other; what it needs is these few lines.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, a symbolic link too, when the block ends without an error."""
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            os.fchmod(file.fileno(), FILE_MODE)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
