"""The sufficient statistics of a step, written where a rank holds only a part of a tensor: so that merging is exact.

A file, `partials/steps_0-4.bin`, covers steps as CSV files do. It is a sequence of blocks: a line of JSON, then as many
bytes as its `bytes` says. The block of a step holds its numbers; before it, once, comes the block of the tensors that
these belong to. A kill cuts the last block, and the ones before it are read all the same.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from attrs import asdict, fields_dict, frozen
from numpy.typing import NDArray

import msmon_io
from msmon_hooks import TensorRef
from msmon_stats import FIELDS

FOLDER = "partials"
SCHEMA = 2
_LONGEST_LINE = 4096
_NUMBER = np.dtype("<f8")


@frozen(kw_only=True)
class Tensors:
    """Which tensor each row is of; a list has one entry a row."""

    data_type: list[str]
    vpp_stage: list[int]
    name: list[str]
    micro_step: list[int]
    """-1 where a tensor exists once a step."""
    dtype: list[str]

    @classmethod
    def of(cls, refs: Sequence[TensorRef]) -> Tensors:
        """Those that were read."""
        return cls(
            data_type=[ref.data_type for ref in refs],
            vpp_stage=[ref.vpp_stage for ref in refs],
            name=[ref.name for ref in refs],
            micro_step=[-1 if ref.micro_step is None else ref.micro_step for ref in refs],
            dtype=[ref.dtype for ref in refs],
        )


@frozen(kw_only=True, eq=False)
class Partials:
    """The rows of one rank and step."""

    tensors: Tensors
    matrix: NDArray[np.float64]
    """float64 `[rows, 8]`, columns `msmon_stats.FIELDS`."""


class PartialsWriter:
    """Writes the statistics of sharded tensors into a run directory; where there are none there is no file.

    Args:
        run_dir: the run directory.
        step_count_per_record: steps in one file.
    """

    def __init__(self, run_dir: Path, *, step_count_per_record: int) -> None:
        self.losses = msmon_io.Losses(part="partials")
        self._run_dir = Path(os.path.realpath(run_dir))
        self._step_count = step_count_per_record
        self._refs: Sequence[TensorRef] = ()
        self._sharded = np.zeros(0, np.intp)
        self._known: list[TensorRef] = []
        self._tensors = b""
        self._path: Path | None = None
        self._named = b""
        """The last block of tensors in the file."""
        self._end = 0
        """Where the next block goes."""

    def write(self, step: int, refs: Sequence[TensorRef], matrix: NDArray[np.float64]) -> None:
        """Write the rows whose tensor is sharded; what cannot be written is logged once and counted.

        Args:
            step: number of the step.
            refs: one a row; the same object as in the step before where nothing else is in it.
            matrix: float64 `[rows, 8]`.
        """
        if refs is not self._refs:
            self._refs = refs
            self._sharded = np.flatnonzero([ref.shard is not None for ref in refs])
            known = [refs[index] for index in self._sharded.tolist()]
            # Others may differ at every step, such as activations of any length.
            if known != self._known:
                self._known = known
                columns = json.dumps(asdict(Tensors.of(known), recurse=False))
                self._tensors = _block({"schema": SCHEMA}, zlib.compress(columns.encode(), 1))
        if not len(self._sharded):
            return
        first = step - step % self._step_count
        path = self._run_dir / FOLDER / f"steps_{first}-{first + self._step_count - 1}.bin"
        try:
            self._append(path, step, matrix[self._sharded])
        except (OSError, ValueError) as error:
            self.losses.add(len(self._sharded), error, str(path))

    def _append(self, path: Path, step: int, rows: NDArray[np.float64]) -> None:
        if path != self._path or not path.exists():
            self._path, self._named, self._end = None, b"", _end_of_blocks(path)
        # Counts of NaN and Inf are nearly always 0. Not -0.0.
        kept = np.flatnonzero(rows.view(np.int64).any(axis=0))
        data = _block(
            {"step": step, "fields": [FIELDS[column] for column in kept]}, rows[:, kept].astype(_NUMBER).tobytes()
        )
        if self._named is not self._tensors:
            data = self._tensors + data
        msmon_io.append_bytes(path, data, root=self._run_dir, after=self._end)
        self._path, self._named, self._end = path, self._tensors, self._end + len(data)

    def close(self) -> None:
        """Report what could not be written."""
        self.losses.report()


def _block(head: dict[str, Any], body: bytes) -> bytes:
    return json.dumps({**head, "bytes": len(body)}).encode() + b"\n" + body


def _blocks(file: BinaryIO) -> Iterator[tuple[dict[str, Any], int]]:
    """The head of each block and where its body begins, up to one that is cut."""
    size = os.fstat(file.fileno()).st_size
    while line := file.readline(_LONGEST_LINE):
        if not line.endswith(b"\n") and file.tell() == size and line.startswith(b"{"):
            return
        head, body = json.loads(line), file.tell()
        end = body + head["bytes"]
        if end < body:
            raise ValueError(f"a block of {head['bytes']} bytes")
        if end > size:
            return
        yield head, body
        file.seek(end)


def _end_of_blocks(path: Path) -> int:
    """How many bytes of a file of an earlier process are whole blocks; 0 if there is none."""
    try:
        with path.open("rb") as file:
            return max((body + head["bytes"] for head, body in _blocks(file)), default=0)
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, nothing is added to it: {error}") from error


class PartialsReader:
    """Reads what one rank stored, a step at a time.

    Of a step that a resumed training did again, the later rows count.

    Raises:
        ValueError: a file is no such file, or one of a later version; the message names it.
        OSError: it cannot be read.
    """

    def __init__(self, run_dir: Path) -> None:
        self._stored: dict[int, tuple[Path, dict[str, Any], int, Tensors]] = {}
        """Step -> file, head, where the body begins, and what the rows are about."""
        self._known: dict[bytes, Tensors] = {}
        # Schema 1: a file a step.
        old = (run_dir / FOLDER).glob("step_*.npz")
        self._old = {int(path.stem[5:]): path for path in old if path.stem[5:].isdecimal()}
        for path in sorted((run_dir / FOLDER).glob("steps_*.bin")):
            try:
                self._find(path)
            except (ValueError, KeyError, TypeError, zlib.error) as error:
                raise ValueError(f"{path} is damaged: {error}") from error

    def _find(self, path: Path) -> None:
        tensors: Tensors | None = None
        with path.open("rb") as file:
            for head, body in _blocks(file):
                if "step" not in head:
                    if head["schema"] != SCHEMA:
                        raise ValueError(f"its schema is {head['schema']}, this version of msmon reads {SCHEMA}")
                    text = file.read(head["bytes"])
                    if text not in self._known:
                        self._known[text] = Tensors(**json.loads(zlib.decompress(text)))
                    tensors = self._known[text]
                elif tensors is None:
                    raise ValueError(f"the tensors of step {head['step']} are missing")
                else:
                    self._stored[int(head["step"])] = path, head, body, tensors

    @property
    def steps(self) -> list[int]:
        """The steps that the rank wrote, in order."""
        return sorted({*self._stored, *self._old})

    def read(self, step: int) -> Partials | None:
        """The rows of a step, or None where the rank wrote none.

        Raises:
            ValueError: the file is damaged; the message names it.
            OSError: it cannot be read.
        """
        if step not in self._stored:
            return _read_npz(self._old[step]) if step in self._old else None
        path, head, begin, tensors = self._stored[step]
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(head["bytes"])
        matrix = np.zeros((len(tensors.name), len(FIELDS)))
        try:
            columns = [FIELDS.index(field) for field in head["fields"]]
            matrix[:, columns] = np.frombuffer(body, _NUMBER).reshape(len(matrix), len(columns))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged in step {step}: {error}") from error
        return Partials(tensors=tensors, matrix=matrix)


def _read_npz(path: Path) -> Partials:
    try:
        with np.load(path, allow_pickle=False) as file:
            tensors = Tensors(**{field: file[field].tolist() for field in fields_dict(Tensors)})
            return Partials(tensors=tensors, matrix=file["partials"])
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
