"""Puts a whole new file in the place of an old one, in one step."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

NEW_FILE_MODE = 0o640


def replace_file(path: Path, data: bytes, *, unless: Callable[[], bool] = lambda: False) -> bool:
    """Write `data` under the name `path`, so that readers see the old file or the new one and nothing between.

    Mode, owner and access lists of an existing file are kept as far as this user may set them.

    Args:
        unless: asked right before the new file takes the name; if true, nothing happens.

    Returns:
        whether the file was replaced.

    Raises:
        OSError: the directory or the disk does not allow it; the old file is as it was.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            _copy_permissions(path, file.fileno(), temporary)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if unless():
            os.unlink(temporary)
            return False
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return True


def _copy_permissions(path: Path, descriptor: int, temporary: str) -> None:
    try:
        old = os.stat(path)
    except FileNotFoundError:
        os.fchmod(descriptor, NEW_FILE_MODE)
        return
    with contextlib.suppress(OSError):  # only root may give files away
        os.fchown(descriptor, old.st_uid, old.st_gid)
    with contextlib.suppress(OSError):
        shutil.copystat(path, temporary)
    os.utime(descriptor)  # the copied times are those of the old content
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
