"""Which run directories belong together: those that the ranks of one launch made."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from attrs import field, frozen

from msmon_io.files import PathLike
from msmon_io.run_dirs import RunDir, format_stamp, run_dirs

# Ranks of one launch begin together, give or take what they need to load.
_TOGETHER = timedelta(minutes=30)
_WORLD_SIZE, _START_TIME = re.compile(rb'"world_size": *(\d{1,9})\b'), re.compile(rb'"start_time": *"([ -~]{1,40})"')
# Nobody starts a training again so soon: the monitor of one launch was given another configuration.
_AT_ONCE = timedelta(seconds=10)


@frozen(kw_only=True)
class Launch:
    """The run directories of one launch, at most one of each rank."""

    began: datetime
    """When its first run directory was made."""
    run_dirs: Mapping[int, Path]
    """By rank, in the order of ranks."""
    world_size: int | None
    """How many processes trained; None: no `run.json` says it."""

    @property
    def stamp(self) -> str:
        """The time stamp of its first run directory, which is its name."""
        return format_stamp(self.began)

    @property
    def is_whole(self) -> bool:
        """Whether every rank left a run directory."""
        return self.world_size is not None and self.world_size <= len(self.run_dirs)

    def __str__(self) -> str:
        ranks = f"rank{'s'[: len(self.run_dirs) != 1]} {ranges(self.run_dirs)}"
        return f"{self.stamp} ({ranks}{f' of {self.world_size}' if self.world_size else ''})"


def launches(output_dir: PathLike) -> list[Launch]:
    """The launches whose run directories lie in `output_dir`, oldest first.

    What `run.json` says of `start_time` and `world_size` counts; where there is none, the directory's time stamp. A
    launch has one world size and no rank twice, and its ranks began within half an hour. Where two directories cannot
    be of one launch, the longest pause between them is where the later one began; within ten seconds the later
    directory of each rank counts.
    """
    return group_launches(run_dirs(output_dir))


def newest_run_dirs(output_dir: PathLike) -> dict[int, Path]:
    """The run directories of the newest launch, by rank."""
    found = launches(output_dir)
    return dict(found[-1].run_dirs) if found else {}


def group_launches(runs: Iterable[RunDir]) -> list[Launch]:
    """As `launches`, for run directories that were found otherwise."""
    rest = sorted(_Started.of(run) for run in runs)
    found: list[Launch] = []
    while rest:
        newest = _newest(rest)
        rest = [run for run in rest if run not in newest]
        found.insert(
            0,
            Launch(
                began=min(one.run.time for one in newest),
                run_dirs={one.run.rank: one.run.path for one in sorted(newest, key=lambda one: one.run.rank)},
                world_size=next((one.world_size for one in newest if one.world_size), None),
            ),
        )
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, runs of them as a range.

    >>> ranges([0, 1, 2, 3, 7])
    '0 to 3, 7'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)


@frozen(kw_only=True, order=True)
class _Started:
    """A run directory and what its `run.json` says."""

    time: datetime
    run: RunDir
    world_size: int | None = field(order=False)

    @classmethod
    def of(cls, run: RunDir) -> _Started:
        time, head = run.time, b""
        with contextlib.suppress(OSError), (run.path / "run.json").open("rb") as file:
            # The tensors come behind; there may be thousands, and hundreds of such files.
            head = file.read(4096)
        size, start = _WORLD_SIZE.search(head), _START_TIME.search(head)
        with contextlib.suppress(ValueError):
            # A resumed training goes on in an older directory. Stamps are local time, without a zone.
            time = datetime.fromisoformat(start[1].decode()).replace(tzinfo=None) if start else time
        return cls(time=time, run=run, world_size=int(size[1]) if size else None)

    def fits(self, other: _Started) -> bool:
        """Whether they can be of one launch."""
        return self.run.rank != other.run.rank and (
            self.world_size == other.world_size or None in (self.world_size, other.world_size)
        )


def _newest(runs: list[_Started]) -> list[_Started]:
    """The newest launch of run directories in the order of time; newest first."""
    launch: list[_Started] = []
    for run in reversed(runs):
        if launch and launch[-1].time - run.time > _TOGETHER:
            break
        stranger = next((one for one in reversed(launch) if not run.fits(one)), None)
        if stranger is None:
            launch.append(run)
        elif stranger.time - run.time > _AT_ONCE:
            between = [run, *(one for one in reversed(launch) if one.time <= stranger.time)]
            _, first = max(pairwise(between), key=lambda pair: pair[1].time - pair[0].time)
            return [one for one in launch if one.time >= first.time]
    return launch
