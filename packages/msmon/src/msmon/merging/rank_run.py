"""What one rank wrote: which parts it holds, and its rows as sufficient statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

import msmon_io
from msmon.merging.errors import MergeError
from msmon.merging.written_digits import to_partials
from msmon.partials import PartialsReader

STATE = "state"
"""The data type whose rows are named after a parameter and what the optimizer keeps of it."""
LIKE_STATE = "exp_avg"
"""The data type that is cut into the same parts, where there is a number for each element."""

Key = tuple[str, int, str, int]
"""Data type, virtual stage, name, micro-step (-1: none)."""


@frozen(kw_only=True)
class Piece:
    """The part of a tensor on one rank."""

    part: str
    """Equal on ranks that hold the same part; empty: the whole tensor."""
    numel: int


@frozen(kw_only=True, eq=False)
class Row:
    """One row of one rank."""

    key: Key
    piece: Piece
    partial: NDArray[np.float64]
    exact: bool
    """From stored partials; False: from the digits in a CSV file."""
    dtype: str
    shape: str
    """Of the whole tensor."""


@frozen(kw_only=True)
class Record:
    """What a rank wrote of a range of steps."""

    files: list[Path] = field(factory=list)
    """CSV files."""
    stored: list[int] = field(factory=list)
    """Steps with stored partials."""


@frozen(kw_only=True, eq=False)
class RankRun:
    """The run directory of one rank."""

    rank: int
    path: Path
    info: dict[str, Any]
    """`run.json`."""
    tensors: dict[tuple[int, str], dict[str, Any]]
    """(virtual stage, name) -> entry in `run.json`."""
    pieces: dict[tuple[str, int, str], Piece] = field(repr=False)
    """(data type, virtual stage, name) -> the part on this rank, of sharded tensors alone."""
    partials: PartialsReader = field(repr=False)
    records: dict[tuple[int, int], Record] = field(repr=False)
    """(first step, last step) -> what there is of these steps."""

    @property
    def stage(self) -> int:
        """The pipeline stage."""
        return int(self.info.get("pp_stage", 0))

    def tables(self, record: tuple[int, int]) -> dict[int, dict[str, msmon_io.Table]]:
        """Step -> data type -> table, of the steps that the files of a record hold, and those of stored partials."""
        found: dict[int, dict[str, msmon_io.Table]] = {step: {} for step in self.records.get(record, Record()).stored}
        for path in self.records.get(record, Record()).files:
            for table in msmon_io.read_csv(path):
                found.setdefault(table.step, {})[table.data_type] = table
        return found

    def rows(self, step: int, tables: dict[str, msmon_io.Table]) -> Iterator[Row]:
        """The rows of a step: from the stored partials where there are some, else from the CSV tables."""
        stored = self.partials.read(step)
        exact: set[Key] = set()
        if stored is not None:
            of = stored.tensors
            keys = zip(of.data_type, of.vpp_stage, of.name, of.micro_step, strict=True)
            for key, partial, dtype in zip(keys, stored.matrix, of.dtype, strict=True):
                piece = self._piece_of(key, partial[0])
                if piece is not None:
                    exact.add(key)
                    shape = str(self.tensors[parameter_of(self.tensors, key)]["shape"])
                    yield Row(key=key, piece=piece, partial=partial, exact=True, dtype=dtype, shape=shape)
        for data_type, table in tables.items():
            yield from (row for row in self._from_table(data_type, table) if row.key not in exact)

    def _piece_of(self, key: Key, count: float) -> Piece | None:
        if key[0] != STATE:
            return self.pieces.get(key[:3])
        # What has no number for each element (a factor, a preconditioner) is the rank's own.
        piece = self.pieces.get((LIKE_STATE, *parameter_of(self.tensors, key)))
        return piece if piece is not None and piece.numel == count else None

    def _from_table(self, data_type: str, table: msmon_io.Table) -> Iterator[Row]:
        micro_steps = table.micro_steps or [-1] * len(table)
        places = list(zip(table.vpp_stages, table.names, strict=True))
        owners = [parameter_of(self.tensors, (data_type, *place, -1)) for place in places]
        known = [
            index
            for index, owner in enumerate(owners)
            # Digits do not tell whether a part of a state is one of the parameter's.
            if owner in self.tensors and not (data_type == STATE and (LIKE_STATE, *owner) in self.pieces)
        ]
        if not known:
            return
        entries = [self.tensors[owners[index]] for index in known]
        pieces = [
            self.pieces.get((data_type, *places[index])) or Piece(part="", numel=entry["numel"])
            for index, entry in zip(known, entries, strict=True)
        ]
        numbers = np.array(table.rows(), dtype=np.float64).reshape(len(table), -1)[known]
        values = dict(zip(table.number_ops, numbers.T, strict=True))
        partials = to_partials(values, [piece.numel for piece in pieces])
        # A parameter has one shape, what an optimizer keeps of it has others.
        own_shapes = data_type == STATE and "shape" in table.text
        for index, entry, piece, partial in zip(known, entries, pieces, partials, strict=True):
            yield Row(
                key=(data_type, *places[index], micro_steps[index]),
                piece=piece,
                partial=partial,
                exact=False,
                dtype=table.text["dtype"][index] if "dtype" in table.text else entry["dtype"],
                shape=table.text["shape"][index] if own_shapes else str(entry["shape"]),
            )


def parameter_of(tensors: Mapping[tuple[int, str], Any], key: Key) -> tuple[int, str]:
    """Virtual stage and name of the parameter that a row belongs to."""
    data_type, stage, name, _ = key
    while data_type == STATE and (stage, name) not in tensors and "." in name:
        name = name.rpartition(".")[0]
    return stage, name


def open_rank(rank: int, path: Path) -> RankRun:
    """Read the rank's `run.json`.

    Raises:
        MergeError: it is missing or is none, or its stored partials are damaged.
    """
    file = path / "run.json"
    try:
        info = json.loads(file.read_text("utf-8"))
        entries = info["tensors"]
        _check(info["config"], {"ops": list, "ndigits": int, "step_count_per_record": int})
        for entry in entries:
            _check(entry, {"vpp_stage": int, "name": str, "numel": int, "shape": list, "dtype": str})
            for shard in entry.get("shards", ()):
                _check(shard, {"data_types": list, "part": str, "local_numel": int})
        tensors = {(entry["vpp_stage"], entry["name"]): entry for entry in entries}
        pieces = {
            (data_type, entry["vpp_stage"], entry["name"]): Piece(part=shard["part"], numel=shard["local_numel"])
            for entry in entries
            for shard in entry.get("shards", ())
            for data_type in shard["data_types"]
        }
    except FileNotFoundError:
        raise MergeError(f"{file} is missing: without it nobody knows which parts rank {rank} holds") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MergeError(f"{file} is not what msmon writes ({type(error).__name__}: {error})") from None
    try:
        partials = PartialsReader(path)
    except ValueError as error:
        raise MergeError(str(error)) from error
    return RankRun(
        rank=rank,
        path=path,
        info=info,
        tensors=tensors,
        pieces=pieces,
        partials=partials,
        records=_records(path, partials.steps),
    )


def _check(fields: Any, kinds: dict[str, type]) -> None:
    for name, kind in kinds.items():
        if type(fields[name]) is not kind:
            raise TypeError(f"{name} is {fields[name]!r:.80}")


def _records(run_dir: Path, stored: list[int]) -> dict[tuple[int, int], Record]:
    found: dict[tuple[int, int], Record] = {}
    for path in sorted(run_dir.glob("*.csv")):
        if msmon_io.data_type_of(path) is not None:
            first, _, last = path.stem.rpartition("_")[2].partition("-")
            found.setdefault((int(first), int(last)), Record()).files.append(path)
    for step in stored:
        record = next((record for (first, last), record in found.items() if first <= step <= last), None)
        if record is None:
            record = found.setdefault((step, step), Record())
        record.stored.append(step)
    return found
