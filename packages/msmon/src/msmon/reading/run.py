"""A run's output directory: which ranks it has, what they recorded, and what they say about themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from msmon.reading.csv_pieces import csv_pieces
from msmon.reading.errors import UnusableRun
from msmon.reading.parquet_pieces import parquet_pieces, stored_runs
from msmon.reading.pieces import KEYS, Piece
from msmon.reading.statistics import TEXT
from msmon_hooks import DATA_TYPES
from msmon_io import newest_run_dirs, run_dirs

_POSITIONS = {name: position for position, name in enumerate(DATA_TYPES)}
_RANK = re.compile(r"-rank(\d+)")
#: Ranks of one launch start together; more than this apart, they may belong to different launches.
_ONE_LAUNCH = timedelta(minutes=30)


@attrs.frozen(kw_only=True, slots=False)
class RankRun:
    """What one rank wrote."""

    rank: int
    directory: Path
    info: Mapping[str, Any]
    """`run.json`, or an empty mapping where there is none."""
    coverage: Mapping[str, Any]
    """`coverage.json`, or an empty mapping where there is none."""
    pieces: Mapping[str, Sequence[Piece]]
    """Data type -> its pieces, in the order of their steps."""

    @property
    def pp_stage(self) -> int:
        """The pipeline stage. Names are local to it."""
        stage = self.info.get("pp_stage")
        return stage if isinstance(stage, int) else 0

    def stats(self, data_type: str) -> tuple[str, ...]:
        """The columns with numbers of a data type, in the order of the files."""
        found: dict[str, None] = {}
        header: tuple[str, ...] = ()
        for piece in self.pieces.get(data_type, ()):
            if piece.columns != header:
                header = piece.columns
                found.update(dict.fromkeys(column for column in header if column not in KEYS and column not in TEXT))
        return tuple(found)


@attrs.frozen(kw_only=True, slots=False)
class Run:
    """All ranks of a run."""

    directory: Path
    ranks: Mapping[int, RankRun]
    """In the order of the rank numbers."""
    notes: list[str]
    """What a reader should know about how the run was read."""

    @cached_property
    def data_types(self) -> tuple[str, ...]:
        """Everything that any rank recorded, in the order of a training step, unknown ones last."""
        found = {data_type for rank in self.ranks.values() for data_type in rank.pieces}
        return tuple(sorted(found, key=execution_position))

    def stats(self, data_type: str) -> tuple[str, ...]:
        """The statistics of a data type over all ranks."""
        return tuple(dict.fromkeys(stat for rank in self.ranks.values() for stat in rank.stats(data_type)))

    @property
    def info(self) -> Mapping[str, Any]:
        """`run.json` of the first rank that has one."""
        return next((rank.info for rank in self.ranks.values() if rank.info), {})

    def note(self, text: str) -> None:
        """Remember something to tell the reader, once."""
        if text not in self.notes:
            self.notes.append(text)


def execution_position(data_type: str) -> tuple[int, str]:
    """Sorts data types in the order of a training step."""
    return _POSITIONS.get(data_type, len(_POSITIONS)), data_type


def open_run(path: str | Path) -> Run:
    """Look into an output directory; no statistics are read yet.

    Args:
        path: an output directory (of each rank the newest run is taken), one run directory in it, or a directory
            that holds a rank's CSV files.

    Raises:
        UnusableRun: there is nothing to read.
    """
    directory = Path(path)
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        raise UnusableRun(f"{directory} {what}: give the output directory of a run ($MONITOR_OUTPUT_DIR)")
    notes: list[str] = []
    directories = _rank_directories(directory, notes)
    ranks = {rank: _open_rank(rank, directories[rank], notes) for rank in sorted(directories)}
    filled = {rank: run for rank, run in ranks.items() if run.pieces}
    notes += [f"rank {rank}: {run.directory.name} holds no statistics" for rank, run in ranks.items() if not run.pieces]
    if not filled:
        where = ", ".join(str(path) for path in directories.values()) or str(directory)
        raise UnusableRun(
            f"{directory} holds no statistics of a run: no <data type>_<first>-<last>.csv and no Parquet file of it in "
            f"{where}; TensorBoard event files cannot be read back"
        )
    return Run(directory=directory, ranks=filled, notes=notes)


def _rank_directories(directory: Path, notes: list[str]) -> dict[int, Path]:
    found = newest_run_dirs(directory)
    if not found:
        stored = stored_runs(directory)
        if stored:
            return {rank: directory / run for rank, run in stored.items()}
        match = _RANK.search(directory.name)
        return {int(match[1]) if match else 0: directory}
    every = run_dirs(directory)
    if len(every) > len(found):
        names = ", ".join(path.name for _, path in sorted(found.items())[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        notes.append(f"{len(every)} run directories; of each rank the newest is read: {names}{more}")
    times = {run.rank: run.time for run in every}
    if len(times) > 1 and max(times.values()) - min(times.values()) > _ONE_LAUNCH:
        old = min(times, key=lambda rank: times[rank])
        notes.append(
            f"rank {old}'s newest run began {max(times.values()) - times[old]} before the newest of all: "
            "it may belong to another launch"
        )
    return found


def _open_rank(rank: int, directory: Path, notes: list[str]) -> RankRun:
    pieces: dict[str, Sequence[Piece]] = {**csv_pieces(directory)} if directory.is_dir() else {}
    twice = []
    for data_type, parts in parquet_pieces(directory.parent, rank, directory.name).items():
        twice += [data_type] if data_type in pieces else []
        pieces[data_type] = parts
    if twice:
        notes.append(f"rank {rank}: {', '.join(twice)} is there as CSV and as Parquet; the Parquet files are read")
    return RankRun(
        rank=rank,
        directory=directory,
        info=_read_object(directory / "run.json", notes),
        coverage=_read_object(directory / "coverage.json", notes),
        pieces=pieces,
    )


def _read_object(path: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path} cannot be read: {error}")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{path} holds no JSON object and is not used")
        return {}
    return value
