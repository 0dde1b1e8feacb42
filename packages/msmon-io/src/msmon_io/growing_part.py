"""A Parquet file that grows while the training runs.

Parquet has its index at the end, so a file cannot be appended to. Rows go to a stream in Arrow's format beside it,
which can, and the Parquet file is made from the stream again at intervals.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field

from msmon_io.files import append_bytes, inside, make_dir_inside, replacing

# Making the file again may take this share of the time.
_SHARE = 0.01
_ROWS_PER_GROUP = 1 << 17
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def stream_path(part: Path) -> Path:
    """The stream of a Parquet file. Data sets pass over names that begin with `_`."""
    return part.with_name(f"_{part.stem}.arrows")


def unused_part(path: Path) -> Path:
    """The path, with a number if there is such a file already: a resumed training may come to the same step again."""
    number, found = 0, path
    while found.exists() or stream_path(found).exists():
        number += 1
        found = path.with_name(f"{path.stem}.{number}.parquet")
    return found


def stream_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a stream up to where it breaks off, if its writer was killed.

    Raises:
        OSError: it cannot be read.
    """
    with pa.memory_map(os.fspath(path)) as source:
        while source.tell() < source.size():
            # Where rows could not be written, the next stream begins.
            try:
                yield from pa.ipc.open_stream(source)
            except (pa.ArrowInvalid, OSError):
                return


def write_part(path: Path, batches: Iterator[pa.RecordBatch], *, root: Path) -> None:
    """Write the rows as one Parquet file of a data set that lies in `root`.

    Raises:
        OSError, pa.ArrowException: it cannot be written; a file that was there is unharmed.
    """
    make_dir_inside(path.parent, root)
    with replacing(inside(path, root)) as fd, open(fd, "wb", closefd=False) as file:
        groups = row_groups(batches)
        group = next(groups)
        # Of statistics hardly two are equal: to look for those that are takes as long as all the rest.
        repetitive = [column.name for column in group.schema if column.type != pa.float64()]
        with pq.ParquetWriter(file, group.schema, compression="zstd", use_dictionary=repetitive) as writer:
            while group:
                writer.write_table(group, row_group_size=group.num_rows)
                group = next(groups, None)


def row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of some 131,000, which a reader can hold; no batch is cut."""
    collected: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        collected.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield pa.Table.from_batches(collected).unify_dictionaries()
            collected, rows = [], 0
    if collected:
        yield pa.Table.from_batches(collected).unify_dictionaries()


@define(kw_only=True)
class GrowingPart:
    """A file of the data set and its stream."""

    path: Path
    root: Path
    schema: pa.Schema
    rows: int = field(default=0, init=False)
    """The unwritten ones among them."""
    _unwritten: list[pa.Table] = field(factory=list, init=False)
    _size: int = field(default=0, init=False)
    _bytes: io.BytesIO = field(factory=io.BytesIO, init=False)
    _stream: pa.RecordBatchStreamWriter | None = field(default=None, init=False)
    _due: float = field(default=0.0, init=False)
    _has_news: bool = field(default=False, init=False)

    def add(self, rows: pa.Table) -> None:
        """Take rows, in memory."""
        self._unwritten.append(rows)
        self.rows += rows.num_rows

    @property
    def unwritten(self) -> int:
        """Rows that are in no file."""
        return sum(table.num_rows for table in self._unwritten)

    def drop_unwritten(self) -> int:
        """Give up the rows that are in no file; how many these were."""
        rows, self._unwritten = self.unwritten, []
        return rows

    def append(self) -> None:
        """Bring the rows to the stream.

        Raises:
            OSError: what the file system says; the rows are kept, and the stream is as it was.
        """
        if not self._unwritten:
            return
        if self._size and not stream_path(self.path).exists():
            # Somebody removed it: what the Parquet file has stays as it is.
            self.path, self._size, self._stream = unused_part(self.path), 0, None
        if self._stream is None:
            # After a failure it is not known what its readers know, names among it: a new stream begins behind it.
            self._bytes = io.BytesIO(_END_OF_STREAM if self._size else b"")
            self._bytes.seek(0, os.SEEK_END)
            self._stream = pa.ipc.new_stream(self._bytes, self.schema)
        try:
            for rows in self._unwritten:
                self._stream.write_table(rows)
            data = self._bytes.getvalue()
            append_bytes(stream_path(self.path), data, root=self.root, after=self._size)
        except BaseException:
            self._stream = None
            raise
        self._size += len(data)
        self._bytes.seek(0)
        self._bytes.truncate()
        self._unwritten = []
        self._has_news = True

    def publish(self) -> None:
        """Make the Parquet file anew, if it has taken little of the time so far.

        Raises:
            OSError, pa.ArrowException: it cannot be written; the stream has all rows.
        """
        begin = time.monotonic()
        if self._has_news and begin >= self._due:
            try:
                self._write()
            finally:
                end = time.monotonic()
                self._due = end + (end - begin) / _SHARE

    def _write(self) -> None:
        write_part(self.path, stream_batches(stream_path(self.path)), root=self.root)
        self._has_news = False

    def close(self) -> None:
        """Make the Parquet file whole, and remove the stream.

        Raises:
            OSError, pa.ArrowException: it cannot be written; the stream stays and has all rows.
        """
        if self._has_news:
            self._write()
        if self._size:
            with contextlib.suppress(FileNotFoundError):
                stream_path(self.path).unlink()
