"""`anomaly.json` of one rank: a JSON object that grows by appending and can be read at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msmon_alert.files import DIRECTORY_MODE, replaced
from msmon_alert.reading import BrokenFileError, end_of_records
from msmon_alert.record import record_key

FILE_NAME = "anomaly.json"
_END = b"\n}\n"
_EMPTY = b"{" + _END


class AnomalyFile:
    """Writes `<directory>/anomaly.json`.

    The file is a whole JSON object from its creation on. Each record, a line of its own, is appended by one write over
    the closing brace, so the ten-thousandth costs what the first did. Should the process be killed in the middle of
    that write (between two pages of the file, within microseconds), the closing brace is missing: `first_anomalies`
    reads such a file up to there, and `append` mends it.

    Args:
        directory: made if missing (mode 0750), one for each rank.
        append: continue the records that are there; else the file begins anew, replaced as a whole. What a killed
            write left unfinished at the end of the file is cut off.

    Raises:
        OSError: the file cannot be made or opened, or the directory is a symbolic link to somewhere outside its parent.
        ValueError: append, and what is there is not a JSON object of records.

    >>> import json, tempfile
    >>> with AnomalyFile(tempfile.mkdtemp() + "/rank0") as file:
    ...     file.write([{"tag_name": "0:fc.weight/rank0/grad_reduced", "step": 3, "call_id": 7, "message": "odd"}])
    >>> list(json.loads(file.path.read_text()))
    ['0:fc.weight/rank0/grad_reduced_step_3_call_7']
    """

    def __init__(self, directory: str | os.PathLike[str], append: bool = False) -> None:
        folder = Path(directory)
        folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if folder.is_symlink() and not folder.resolve().is_relative_to(folder.parent.resolve()):
            raise OSError(
                f"{folder} is a symbolic link to {folder.resolve()}, outside {folder.parent}; remove the link"
            )
        self.path = folder / FILE_NAME
        self.written = 0
        """Records written by this object."""
        self.failed = 0
        """Records that could not be written."""
        if append and self.path.exists():
            self._file, self._end, self._empty = _continue(self.path)
        else:
            with replaced(self.path) as empty:
                empty.write(_EMPTY)
            self._file = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._end, self._empty = len(_EMPTY) - len(_END), True

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends records; the key of each is made of its tag_name, step and call_id.

        Raises:
            OSError: the disk is full, for example. The file then holds the records before that, and `failed` counts the
                others.
            ValueError: a value that JSON does not know; nothing is written.
        """
        lines = [
            f"{json.dumps(record_key(record))}: {json.dumps(dict(record), allow_nan=False)}".encode()
            for record in records
        ]
        for number, line in enumerate(lines):
            # One write a record: a kill stops a long write between two of its pages, a short one hardly ever.
            body = (b"\n" if self._empty else b",\n") + line
            try:
                _write_at(self._file, body + _END, self._end)
            except OSError:
                self.failed += len(lines) - number
                _write_at(self._file, _END, self._end)
                os.ftruncate(self._file, self._end + len(_END))
                raise
            self._end += len(body)
            self._empty = False
            self.written += 1

    def close(self) -> None:
        """May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> AnomalyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _continue(path: Path) -> tuple[int, int, bool]:
    """Opens a file to go on with: descriptor, where the next record goes, whether there is none yet."""
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            end, empty = end_of_records(path)
        except BrokenFileError as error:
            raise ValueError(f"{error}; it cannot be continued: move it away or write without append") from error
        _write_at(file, _END, end)
        os.ftruncate(file, end + len(_END))
    except BaseException:
        os.close(file)
        raise
    return file, end, empty


def _write_at(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count
