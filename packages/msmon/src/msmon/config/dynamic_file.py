"""The configuration file as a switch: noticing that it was edited, and setting `dynamic_on` to false in it."""

import hashlib
import os
import time
from pathlib import Path

from attrs import frozen

from msmon.config.json_text import parse_object, value_span
from msmon.config.problems import ConfigError
from msmon.config.reading import Stamp, path_name, read_file
from msmon_io import replace_file

_COARSE_CLOCK_SECONDS = 2.0
_KEY = "dynamic_on"


@frozen
class Content:
    """What stood in a file at one moment."""

    data: bytes
    digest: str


class ConfigWatch:
    """Notices every change of a file's content, at the cost of one `stat` a call.

    An editor may write in place, truncate first, or put a new file under the old name. The stamp (device, inode, size,
    both times) shows each of these, except a second write of the same size within the same tick of a file system's
    clock, which may be as long as two seconds. So for that long after a new stamp, the content itself is compared.

    >>> watch = ConfigWatch("monitor_config.json")  # doctest: +SKIP
    >>> watch.changed()  # after each step: None, or the new Content  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._stamp: Stamp | None = None
        self._digest: str | None = None
        self._unreadable = False
        self._compare_until = 0.0

    def changed(self) -> Content | None:
        """The content, if it is another than at the last call; at the first call in any case.

        A file that is being written while it is read counts as unchanged, and is read again by the next call.

        Raises:
            ConfigError: the file cannot be read; once, until it can be read again.
        """
        if self._stamp is not None and self._stamp == self._look() and time.monotonic() >= self._compare_until:
            return None
        try:
            data, stamp = read_file(self.path)
        except ConfigError:
            self._stamp = None
            if self._unreadable:
                return None
            self._unreadable = True
            raise
        self._unreadable = False
        if stamp is None:
            return None
        content = Content(data, digest_of(data))
        if (stamp, content.digest) != (self._stamp, self._digest):
            self._compare_until = time.monotonic() + _COARSE_CLOCK_SECONDS
        before, self._stamp, self._digest = self._digest, stamp, content.digest
        return content if content.digest != before else None

    def _look(self) -> Stamp | None:
        try:
            return Stamp.of(os.stat(self.path))
        except (OSError, ValueError):
            return None  # reading it will say why


def digest_of(data: bytes) -> str:
    """What tells one content of the file from another: SHA-256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def switch_off(path: str | os.PathLike[str], digest: str) -> bool:
    """Set `dynamic_on` to false in the file, and leave every other byte as it is.

    The file is replaced in one step by a new one with the same mode and, where that is allowed, owner. Where `path`
    is a symbolic link, what it leads to is replaced. Nothing is written unless the file still holds what `digest`
    was made of, since otherwise someone has changed it meanwhile, and what they wrote is in force.

    Returns:
        whether it was written; not if the file has changed or is switched off already.

    Raises:
        ConfigError: the file cannot be read.
        OSError: the new file cannot be written beside the old one.
    """
    target = Path(os.path.realpath(path))
    data, stamp = read_file(target)
    if stamp is None or digest_of(data) != digest:
        return False
    text = data.decode("utf-8")
    span = value_span(text, _KEY)
    if span is None or not parse_object(data, path_name(path))[_KEY]:
        return False
    new = (text[: span[0]] + "false" + text[span[1] :]).encode("utf-8")
    # Nobody can hold a lock that editors respect, so the last look is as late as possible.
    return replace_file(target, new, unless=lambda: Stamp.of(os.stat(target)) != stamp)
