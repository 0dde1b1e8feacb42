"""Reads a file of a size that a configuration can have, or says why that is not possible."""

import os
import stat
from pathlib import Path

from attrs import frozen

from msmon.config.problems import ConfigError, nearest, shown

_MOST_BYTES = 16 * 2**20


@frozen
class Stamp:
    """What changes when a file is written or replaced, as far as the file system records it."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    """Also set by a change of the modification time itself, so a copy that keeps old times is noticed."""

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, Stamp | None]:
    """The bytes of a regular file and its stamp. The stamp is None if the file changed while it was read.

    Raises:
        ConfigError: says why there are none.
    """
    name = path_name(path)
    if path == "":
        raise ConfigError("the path of the configuration file is empty")
    try:
        # Non-blocking, so that a pipe without a writer is refused instead of waited for.
        descriptor = os.open(os.fspath(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise ConfigError(f"{name}: a directory, expected a JSON file in it, such as config.json")
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{name}: not a regular file, expected a JSON file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(_MOST_BYTES + 1)
            before, after = Stamp.of(status), Stamp.of(os.fstat(descriptor))
        finally:
            os.close(descriptor)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file{_near_file(path)}") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: not a path: {error}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{name}: more than {_MOST_BYTES >> 20} MiB, which no configuration has")
    return data, after if before == after and len(data) == after.size else None


def path_name(path: object) -> str:
    """A path as it stands in messages."""
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else repr(path)
    return text if text and text.isprintable() else shown(text)


def _near_file(path: str | os.PathLike[str]) -> str:
    """Where was looked, and what there is of a similar name."""
    absolute = Path(os.path.abspath(os.fsdecode(path)))
    try:
        near = nearest(absolute.name, os.listdir(absolute.parent))
    except OSError:
        return f"; {absolute.parent} does not exist" if not absolute.parent.exists() else ""
    return f" in {absolute.parent}" + (f", did you mean {near}?" if near else "")
