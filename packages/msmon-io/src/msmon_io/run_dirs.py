"""Run directories, `Dec03_21-34-40-rank0-3f1a9c2e`: made, found again, and sorted although they have no year."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from attrs import evolve, frozen

from msmon_io.files import PathLike, inside, make_dir

logger = logging.getLogger("msmon_io")

# Not strftime("%b"): that follows the locale.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STAMP = re.compile(rf"({'|'.join(_MONTHS)})(\d\d)_(\d\d)-(\d\d)-(\d\d)", re.ASCII)
# Of the second form, which has one run in an output directory.
_RANK_DIR = re.compile(r"rank_(\d+)", re.ASCII)
_RUN_DIR = re.compile(rf"(?P<stamp>{_STAMP.pattern})-rank(?P<rank>\d+)(?:-.*)?", re.ASCII)
# Clocks of machines that share a disk differ a little.
_CLOCK_SLACK = timedelta(days=1)
_HALF_YEAR = timedelta(days=183)


@frozen(kw_only=True, order=True)
class RunDir:
    """A run directory of one rank. Sorted by time, across new year."""

    time: datetime
    rank: int
    path: Path


def format_stamp(time: datetime) -> str:
    """The time stamp of a directory name.

    >>> format_stamp(datetime(2026, 12, 3, 21, 34, 40))
    'Dec03_21-34-40'
    """
    return f"{_MONTHS[time.month - 1]}{time:%d_%H-%M-%S}"


def parse_stamp(stamp: str, *, before: datetime | None = None, what: str = "time stamp") -> datetime:
    """The last moment not after `before` that the time stamp can mean (it has no year).

    Args:
        before: default: now, and a day for clocks that differ.
        what: what the error message calls the value.

    Raises:
        ValueError: it is no time stamp, with the right form in the message.
    """
    latest = datetime.now() + _CLOCK_SLACK if before is None else before
    match = _STAMP.fullmatch(stamp) if isinstance(stamp, str) else None
    if match:
        month = _MONTHS.index(match[1]) + 1
        day, hour, minute, second = (int(match[i]) for i in range(2, 6))
        # 29 February needs a leap year, at most 8 years back.
        for year in range(latest.year, latest.year - 9, -1):
            try:
                time = datetime(year, month, day, hour, minute, second)
            except ValueError:
                continue
            if time <= latest:
                return time
    raise ValueError(
        f"{what}: {stamp!r} is no time stamp; write it like the run directories do, "
        f"{format_stamp(datetime(2026, 12, 3, 21, 34, 40))!r} (month, day, hour-minute-second)"
    )


def parse_range(time_start: str, time_end: str) -> tuple[datetime, datetime]:
    """Both ends of a range of time stamps, which may span new year.

    Raises:
        ValueError: one is no time stamp, or the start is after the end.
    """
    end = parse_stamp(time_end, what="time_end")
    start = parse_stamp(time_start, before=end, what="time_start")
    if end - start > _HALF_YEAR:
        raise ValueError(
            f"time_start {time_start!r} is after time_end {time_end!r}: the earlier time stamp comes first"
        )
    return start, end


def run_dirs(output_dir: PathLike, *, rank: int | None = None, before: datetime | None = None) -> list[RunDir]:
    """The run directories in `output_dir`, oldest first; links that lead out of it are left out.

    Args:
        rank: only those of this rank.
        before: time stamps mean the last moment not after this one; default: now.
    """
    found = []
    real_root = os.path.realpath(output_dir)
    for entry in os.scandir(output_dir):
        run = run_dir_named(entry.path, before=before)
        if run is None or not entry.is_dir() or (rank is not None and run.rank != rank):
            continue
        with contextlib.suppress(OSError):
            found.append(evolve(run, path=inside(entry.path, real_root)))
    return sorted(found)


def run_dir_named(path: PathLike, *, before: datetime | None = None) -> RunDir | None:
    """What the name of a run directory says, whether it is there or not; None: it is no such name.

    `rank_<r>`, of the second form, says no time: that of the directory's last change is taken.

    >>> run_dir_named("out/Dec03_21-34-40-rank7-3f1a9c2e").rank
    7
    """
    name = os.path.basename(path)
    match = _RUN_DIR.fullmatch(name)
    of_rank = _RANK_DIR.fullmatch(name)
    if of_rank:
        made = datetime.fromtimestamp(os.stat(path).st_mtime) if os.path.exists(path) else datetime.now()
        return RunDir(time=made, rank=int(of_rank[1]), path=Path(path))
    with contextlib.suppress(ValueError):
        if match:
            return RunDir(time=parse_stamp(match["stamp"], before=before), rank=int(match["rank"]), path=Path(path))
    return None


def run_dirs_between(
    output_dir: PathLike, time_start: str | None, time_end: str | None, *, rank: int | None = None
) -> list[RunDir]:
    """The run directories whose time stamp lies in the range, both ends included, oldest first.

    Args:
        time_start: None: from the first one on.
        time_end: None: to the last one.
        rank: only those of this rank.

    Raises:
        ValueError: a bad time stamp.
        OSError: `output_dir` cannot be read.
    """
    if time_end is None:
        start = None if time_start is None else parse_stamp(time_start, what="time_start")
        return [run for run in run_dirs(output_dir, rank=rank) if start is None or start <= run.time]
    if time_start is None:
        end = parse_stamp(time_end, what="time_end")
        return [run for run in run_dirs(output_dir, rank=rank) if run.time <= end]
    start, end = parse_range(time_start, time_end)
    return [run for run in run_dirs(output_dir, rank=rank, before=end) if start <= run.time]


def create_run_dir(output_dir: PathLike, rank: int) -> Path:
    """A new run directory (mode 0750), absolute: local time, rank, 8 hexadecimal digits.

    Raises:
        OSError: it cannot be made.
    """
    root = make_dir(output_dir)
    path = root / f"{format_stamp(datetime.now())}-rank{rank:d}-{uuid.uuid4().hex[:8]}"
    return make_dir(path)


def find_run_dir(output_dir: PathLike, rank: int, time_start: str, time_end: str) -> Path:
    """The directory in which a resumed training goes on: this rank's, with a time stamp in the range.

    Several: the newest, with a warning. None: a new one, with a warning.

    Raises:
        ValueError: a bad time stamp, with the right form in the message.
        OSError: the output directory cannot be read or the new one cannot be made.
    """
    parse_range(time_start, time_end)
    where = f"{os.path.abspath(output_dir)} between {time_start} and {time_end}"
    found = run_dirs_between(output_dir, time_start, time_end, rank=rank) if os.path.isdir(output_dir) else []
    found = [run for run in found if not _RANK_DIR.fullmatch(run.path.name)]
    if not found:
        path = create_run_dir(output_dir, rank)
        logger.warning("no run directory of rank %d in %s: the output goes to a new one, %s", rank, where, path.name)
        return path
    if len(found) > 1:
        names = ", ".join(run.path.name for run in found)
        logger.warning("rank %d has several run directories in %s (%s): the newest is continued", rank, where, names)
    path = found[-1].path
    # A killed process may have left a file half written.
    for leftover in path.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            leftover.unlink()
    return path
