"""A run's output directory: which ranks it has, what they recorded, and what they say about themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from msmon.partials import PartialsReader
from msmon.reading.csv_files import csv_files
from msmon.reading.errors import UnusableRun
from msmon.reading.parquet_files import parquet_files, stored_runs
from msmon.reading.partials_files import open_partials, partials_files
from msmon.reading.row_files import KEYS, RowFile
from msmon.reading.tensor_entries import TensorEntry, tensor_entries
from msmon_hooks import DATA_TYPES
from msmon_io import TEXT_OPS, Launch, group_launches, launches

_POSITIONS = {name: position for position, name in enumerate(DATA_TYPES)}
_RANK = re.compile(r"-rank(\d+)")


@attrs.frozen(kw_only=True, slots=False)
class RankRun:
    """What one rank wrote."""

    rank: int
    directory: Path
    info: Mapping[str, Any]
    """`run.json`, or an empty mapping where there is none."""
    coverage: Mapping[str, Any]
    """`coverage.json`, or an empty mapping where there is none."""
    tensors: Mapping[tuple[int, str], TensorEntry] | None
    """(virtual stage, name) -> what `run.json` says of a tensor; None: it does not say which there are."""
    files: Mapping[str, Sequence[RowFile]]
    """Data type -> its files, in the order of their steps."""
    partials: PartialsReader | None
    """What the rank stored of its shards."""

    @property
    def pp_stage(self) -> int:
        """The pipeline stage. Names are local to it."""
        stage = self.info.get("pp_stage")
        return stage if isinstance(stage, int) else 0

    def stats(self, data_type: str) -> tuple[str, ...]:
        """The columns with numbers of a data type, in the order of the files."""
        headers = dict.fromkeys(file.columns for file in self.files.get(data_type, ()))
        found = dict.fromkeys(column for header in headers for column in header)
        return tuple(column for column in found if column not in KEYS and column not in TEXT_OPS)


@attrs.frozen(kw_only=True, slots=False)
class Run:
    """All ranks of a run."""

    directory: Path
    ranks: Mapping[int, RankRun]
    """In the order of the rank numbers."""
    notes: list[str]
    """What a reader should know about how the run was read."""
    launch: Launch | None = None
    """What is read; None: these are no run directories."""
    launches: Sequence[Launch] = ()
    """All that there are in the directory, oldest first."""

    @cached_property
    def data_types(self) -> tuple[str, ...]:
        """Everything that any rank recorded, in the order of a training step, unknown ones last."""
        found = {data_type for rank in self.ranks.values() for data_type in rank.files}
        return tuple(sorted(found, key=execution_position))

    def stats(self, data_type: str) -> tuple[str, ...]:
        """The statistics of a data type over all ranks."""
        return tuple(dict.fromkeys(stat for rank in self.ranks.values() for stat in rank.stats(data_type)))

    @property
    def info(self) -> Mapping[str, Any]:
        """`run.json` of the first rank that has one."""
        return next((rank.info for rank in self.ranks.values() if rank.info), {})

    @property
    def anomaly_ranks(self) -> Collection[int] | None:
        """The ranks whose `anomaly.json` is of this launch, if there are others: each begins the file anew."""
        if self.launch is None or len(self.launches) == 1:
            return None
        return self.launch.run_dirs if self.launch is self.launches[-1] else ()

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
        path: an output directory, of which the newest launch is taken; or `<output directory>/<time stamp>` for an
            older launch; or one run directory, or a directory that holds a rank's CSV files.

    Raises:
        UnusableRun: there is nothing to read.
    """
    directory = Path(path)
    stamp = "" if directory.exists() or not directory.parent.is_dir() else directory.name
    directory = directory.parent if stamp else directory
    way_out = "give the output directory of a run ($MONITOR_OUTPUT_DIR)"
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        raise UnusableRun(f"{directory} {what}: {way_out}")
    found = launches(directory) or group_launches(stored_runs(directory))
    launch = found[-1] if found else None
    notes: list[str] = []
    if stamp:
        named = [one for one in found if any(path.name.startswith(f"{stamp}-") for path in one.run_dirs.values())]
        if not named:
            there = f"; the launches in {directory} are {_listed(found)}" if found else ""
            raise UnusableRun(f"{path} does not exist: {way_out}{there}")
        launch = named[-1]
    elif len(found) > 1:
        notes.append(
            f"{len(found)} launches; the newest is read, {found[-1]}, and not {_listed(found[:-1])}: "
            f"give {directory / found[-2].stamp} for one of these"
        )
    match = _RANK.search(directory.name)
    directories = launch.run_dirs if launch else {int(match[1]) if match else 0: directory}
    ranks = {rank: _open_rank(rank, directories[rank], notes) for rank in sorted(directories)}
    filled = {rank: run for rank, run in ranks.items() if run.files}
    notes += [f"rank {rank}: {run.directory.name} holds no statistics" for rank, run in ranks.items() if not run.files]
    if not filled:
        where = ", ".join(str(path) for path in directories.values()) or str(directory)
        raise UnusableRun(
            f"{directory} holds no statistics of a run: no <data type>_<first>-<last>.csv and no Parquet file of it in "
            f"{where}; TensorBoard event files cannot be read back{f' ({notes[0]})' if notes else ''}"
        )
    return Run(directory=directory, ranks=filled, notes=notes, launch=launch, launches=found)


def _listed(found: Sequence[Launch]) -> str:
    return ", ".join(map(str, found[-5:])) + (f" and {len(found) - 5} older ones" if len(found) > 5 else "")


def _open_rank(rank: int, directory: Path, notes: list[str]) -> RankRun:
    files = csv_files(directory) if directory.is_dir() else {}
    stored = parquet_files(directory.parent, rank, directory.name)
    twice = sorted(files.keys() & stored.keys())
    if twice:
        notes.append(f"rank {rank}: {', '.join(twice)} is there as CSV and as Parquet; the Parquet files are read")
    files |= stored
    partials = open_partials(directory, notes.append)
    if partials and not files:
        files = partials_files(partials, notes.append)
    info = _read_object(directory / "run.json", notes)
    tensors = None
    if "tensors" in info:
        try:
            tensors = tensor_entries(info["tensors"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            notes.append(f"{directory / 'run.json'} is not what msmon writes ({type(error).__name__}: {error})")
    return RankRun(
        rank=rank,
        directory=directory,
        info=info,
        coverage=_read_object(directory / "coverage.json", notes),
        tensors=tensors,
        files={
            data_type: sorted(own, key=lambda file: (file.first_step, file.last_step))
            for data_type, own in files.items()
        },
        partials=partials,
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
