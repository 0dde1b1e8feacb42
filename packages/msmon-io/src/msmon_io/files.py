"""Files that appear whole or not at all, never outside the directory that they belong to."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FILE_MODE = 0o640
DIR_MODE = 0o750

PathLike = str | os.PathLike[str]


class OutsideError(OSError):
    """A path leads out of the output directory, through a symbolic link or `..`."""


def inside(path: PathLike, real_root: PathLike) -> Path:
    """The path with links followed, if it lies in `real_root`; else `OutsideError`.

    `real_root` is taken as it is, with links followed once by the caller: if a link is put in its place later, that
    link leads out.
    """
    real = os.path.realpath(path)
    if os.path.commonpath([real, real_root]) != os.fspath(real_root):
        raise OutsideError(f"{path} leads to {real}, which is outside of {real_root}: nothing is written there")
    return Path(real)


def _set_mode(fd: int, mode: int) -> None:
    # The mode given to open() is cut by the umask. Some network file systems refuse to change modes.
    with contextlib.suppress(OSError):
        os.fchmod(fd, mode)


def make_dir(path: PathLike) -> Path:
    """Make the directory and its missing parents, each with mode 0750; directories that exist stay as they are."""
    target = Path(os.path.abspath(path))
    for directory in reversed([target, *target.parents]):
        if directory.is_dir():
            continue
        try:
            directory.mkdir(DIR_MODE)
        except FileExistsError:
            if not directory.is_dir():
                raise
            continue
        with contextlib.suppress(OSError):
            directory.chmod(DIR_MODE)
    return target


def make_dir_inside(path: PathLike, real_root: PathLike) -> Path:
    """Make a directory in `real_root`, which must be there: what somebody removed is not brought back.

    Returns:
        The directory with links followed.
    """
    real = inside(path, real_root)
    if not os.path.isdir(real_root):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(real_root))
    return make_dir(real)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[int]:
    """A file descriptor to write to; at the end the file takes `path`'s place in one step, on an error it vanishes.

    A symbolic link at `path` is replaced, not followed.
    """
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex[:8]}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            _set_mode(fd, FILE_MODE)
            yield fd
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file so that it is there whole or not at all, also when the process is killed meanwhile."""
    with replacing(path) as fd:
        for part in parts:
            _write_all(fd, part)


def append_whole(path: Path, data: bytes, *, after: int | None = None) -> None:
    """Append to an existing file; if that fails half way (disk full), cut the file back to what it was.

    With `after`, what stands behind so many bytes goes first.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OutsideError(f"{path} is not a regular file: nothing is written to it")
        size = status.st_size
        if after is not None and after < size:
            size = after
            os.ftruncate(fd, size)
        try:
            _write_all(fd, data)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes, *, unless: Callable[[], bool] = lambda: False) -> bool:
    """Put `data` in the place of a file that belongs to the user, such as a configuration, in one step.

    Mode, owner and access lists of the file are kept as far as this user may set them; a new file has mode 0640. The
    data are on the disk before the file takes its place.

    Args:
        unless: asked right before the new file takes the name; if true, nothing happens.

    Returns:
        Whether the file was replaced.

    Raises:
        OSError: the directory or the disk does not allow it; the old file is as it was.
    """
    with contextlib.suppress(_UnwantedError), replacing(path) as fd:
        _copy_permissions(path, fd)
        _write_all(fd, data)
        os.fsync(fd)
        if unless():
            raise _UnwantedError
        return True
    return False


class _UnwantedError(Exception):
    pass


def _copy_permissions(path: Path, fd: int) -> None:
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):  # only root may give files away
        os.fchown(fd, old.st_uid, old.st_gid)
    with contextlib.suppress(
        OSError, AttributeError
    ):  # access lists are extended attributes, which not all systems have
        for name in os.listxattr(path):
            os.setxattr(fd, name, os.getxattr(path, name))
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


def append_bytes(path: PathLike, data: bytes, *, root: PathLike, after: int | None = None) -> None:
    """Append to a file in `root`, which is made, with its directory, if it is missing (0640, 0750).

    A full disk leaves the file as it was; a kill may leave a part of the data at its end.

    Args:
        root: must be there, with links followed; see `msmon_io.CsvWriter.run_dir`.
        after: the data go after so many bytes; what stands behind them, such as what a kill left, is removed.

    Raises:
        OutsideError: the file is not inside `root`.
        OSError: what the file system says.
    """
    target = inside(path, root)
    make_dir_inside(target.parent, root)
    if target.exists():
        append_whole(target, data, after=after)
    else:
        write_whole(target, data)


def write_json(path: PathLike, obj: Any, *, root: PathLike | None = None) -> None:
    """Write `obj` as JSON: the file is the old one or the whole new one at any moment. Mode 0640.

    Missing directories are made (0750). With `root`, a path that leads out of that directory is refused.

    Raises:
        OutsideError: the directory of `path` is not inside `root`.
        OSError: what the file system says (full, read-only, ...). A file that was there is unharmed.
        TypeError, ValueError: `obj` is no JSON.
    """
    data = json.dumps(obj, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
    target = Path(os.path.abspath(path))
    if root is not None:
        inside(target.parent, os.path.realpath(root))
    make_dir(target.parent)
    write_whole(target, data + b"\n")
