"""TensorBoard event files: tensorboard's own records, gathered in memory and appended whole."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msmon_io.files import PathLike, append_whole, inside, make_dir_inside, write_whole

try:
    from tensorboard.compat.proto.event_pb2 import Event as Event
    from tensorboard.compat.proto.summary_pb2 import Summary as Summary
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
except ImportError as error:
    raise ImportError("TensorBoard files need tensorboard: pip install 'msmon-io[tensorboard]'") from error

# tensorboard's own checksum is pure Python, some 100 times slower than Google's package.
_crc32c: Callable[[bytes], int] = pywrap_tensorflow.crc32c
with contextlib.suppress(ImportError):
    from google_crc32c import value

    _crc32c = value

# One event may hold many values, which costs far less than an event each; this bounds the size of a record.
VALUES_PER_EVENT = 4096
_counter = itertools.count()


def _record(data: bytes) -> bytes:
    """As tensorboard's record writer makes it, with the faster checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    crc = _crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def event_file_name(number: int | None = None) -> str:
    """A name that TensorBoard takes for an event file. In one directory it reads the files in the order of names."""
    host = socket.gethostname().replace(os.sep, "_")
    number = next(_counter) if number is None else number
    return f"events.out.tfevents.{int(time.time()):010}.{host}.{os.getpid()}.{number:05}"


class EventFile:
    """One event file. It is not kept open: what was added reaches the disk in one piece with `flush`.

    Args:
        path: the file; its missing directories are made.
        root: the directory that the file must not leave, with links followed.

    Raises:
        ImportError: tensorboard is not installed; the message says how to install it.
    """

    def __init__(self, path: Path, *, root: PathLike) -> None:
        self.path = path
        self._root = root
        self._buffer = io.BytesIO()
        self._exists = False

    @property
    def pending_bytes(self) -> int:
        """How much `flush` would write."""
        return self._buffer.tell()

    def add_scalars(self, step: int, scalars: Iterable[tuple[str, float]]) -> None:
        """Add (tag, value) pairs of one step. float32, as everywhere in TensorBoard."""
        scalars = iter(scalars)
        now = time.time()
        while chunk := list(itertools.islice(scalars, VALUES_PER_EVENT)):
            event = Event(step=step, wall_time=now)
            add = event.summary.value.add
            for tag, value in chunk:
                add(tag=tag, simple_value=value)
            self.add_events([event.SerializeToString()])

    def add_events(self, events: Iterable[bytes]) -> None:
        """Add events that are serialized already."""
        self._buffer.writelines(map(_record, events))

    def add_image(self, step: int, tag: str, png: bytes, *, width: int, height: int) -> None:
        """Add a picture of one step."""
        image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=3)
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=[Summary.Value(tag=tag, image=image)]))
        self.add_events([event.SerializeToString()])

    def flush(self) -> None:
        """Append what was added.

        Raises:
            OSError: it cannot be written. What was added is forgotten; the file holds whole records all the same.
        """
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        if not data:
            return
        if self._exists:
            append_whole(inside(self.path, self._root), data)
            return
        make_dir_inside(self.path.parent, self._root)
        head = Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()
        write_whole(inside(self.path, self._root), _record(head), data)
        self._exists = True
