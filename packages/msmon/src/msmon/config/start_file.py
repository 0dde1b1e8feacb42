"""The file beside the configuration in which one rank announces to the others when which configuration begins.

Ranks see an edited file at different moments, so each would begin at another step; a collective to agree on one would
change the training. Instead one rank alone watches the configuration, and writes down a step that none has reached.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from msmon.config.json_text import parse_object
from msmon.config.problems import ConfigError
from msmon.config.reading import read_file
from msmon_io import replace_file

SUFFIX = ".msmon-start"
_SCHEMA = 1


@frozen(kw_only=True)
class Announcement:
    """From which step on which configuration is in force, on every rank."""

    launch: str
    """Which launch it belongs to, see `launch_id`."""

    generation: int
    """Counts up with each announcement of a launch."""

    first_step: int
    """The first step for which it holds."""

    digest: str
    """Of the content of the configuration file."""

    config: dict[str, Any] | None
    """The JSON object of the configuration, so that all ranks have the same; None: collect nothing."""


class StartFile:
    """`<configuration>.msmon-start`, replaced as a whole by each announcement.

    It holds the newest two: when the file was edited at two steps in a row, a rank that reads it only then needs both.
    """

    def __init__(self, config_path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(config_path) + SUFFIX)
        self._written: list[Announcement] = []
        self._seen = b""

    def write(self, announcement: Announcement) -> None:
        """Make `announcement` the newest one that all ranks read.

        Raises:
            OSError: the directory of the configuration cannot be written.
        """
        newest = [*self._written[-1:], announcement]
        text = json.dumps({"schema": _SCHEMA, "announcements": [asdict(a) for a in newest]})
        replace_file(self.path, text.encode("utf-8"))
        self._written = newest

    def news(self) -> list[Announcement]:
        """The announcements, oldest first, if the file is another than at the last call; else none.

        The file is opened each time and not only asked for its stamp, because network file systems fetch the newest
        state when a file is opened, but keep stamps for up to a minute.
        """
        try:
            data, _ = read_file(self.path)
        except ConfigError:
            return []
        if data == self._seen:
            return []
        self._seen = data
        try:
            content = parse_object(data, str(self.path))
            if content["schema"] != _SCHEMA:
                return []
            return [_announcement(fields) for fields in content["announcements"]]
        except (ValueError, TypeError, KeyError):
            return []

    def remove(self) -> None:
        """Leave nothing behind, and nothing that a later launch could take for its own."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _announcement(fields: dict[str, Any]) -> Announcement:
    found = Announcement(**fields)
    texts = isinstance(found.launch, str) and isinstance(found.digest, str)
    numbers = type(found.generation) is int and type(found.first_step) is int
    if not (texts and numbers and isinstance(found.config, (dict, type(None)))):
        raise TypeError("not an announcement")
    return found
