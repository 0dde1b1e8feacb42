"""What all conversions of a directory of runs share: which files, which pieces, an output that appears whole."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from msmon_io.csv_reader import BrokenLine, data_types_of, steps_of
from msmon_io.files import PathLike, make_dir, write_json
from msmon_io.progress import progress_bar
from msmon_io.run_dirs import RunDir, run_dirs, run_dirs_between
from msmon_io.workers import Message, run_pieces

logger = logging.getLogger("msmon_io")

_MARKER = ".msmon_io.json"
# Pieces per process: small enough that all processes end at about the same time.
_PIECES_PER_PROCESS = 4
# One file that is no CSV at all must not flood the log.
_BROKEN_LINES_SHOWN = 20


@frozen(kw_only=True)
class Source:
    """The files of one data type in one run directory, in the order of their steps."""

    run: RunDir
    data_type: str
    files: Sequence[Path]
    sizes: Sequence[int]


def convert(
    monitor_path: PathLike,
    time_start: str | None,
    time_end: str | None,
    process_num: int,
    data_type_list: Sequence[str] | None,
    output_dirpath: PathLike | None,
    *,
    output_name: str,
    made_by: str,
    description: str,
    function: str,
    piece: Callable[[int, Source, Path], Message],
) -> Path:
    """What the conversions do alike; the first six arguments are theirs.

    Args:
        output_name: of the output directory in `monitor_path`, where `output_dirpath` does not say another one.
        made_by: the conversion, whose output alone is replaced.
        description: what the progress bar says.
        function: `module:name` of what converts a piece; besides `piece` it is given `files`.
        piece: the arguments of `function` for the n-th piece, with its source, into an output directory.
    """
    if isinstance(process_num, bool) or not isinstance(process_num, int) or process_num < 1:
        raise ValueError(f"process_num: {process_num!r} is not allowed; it must be an integer of at least 1")
    names = data_type_list if data_type_list is not None else []
    if isinstance(names, str) or not all(isinstance(item, str) for item in names):
        raise TypeError(f"data_type_list: {names!r} is not allowed; it must be a list of data types, or None")
    sources = find_sources(monitor_path, time_start, time_end, list(names) or None)
    target = Path(os.path.abspath(Path(monitor_path) / output_name if output_dirpath is None else output_dirpath))
    with replacing_directory(target, made_by) as directory:
        parts = split(sources, process_num)
        pieces = [
            {"files": files, **piece(number, source, directory)} for number, (source, files, _) in enumerate(parts)
        ]
        rows, broken = run_conversion(function, pieces, [size for _, _, size in parts], process_num, description)
    logger.info("%s: %d rows converted, %d broken lines passed over", target, rows, broken)
    return target


def find_sources(
    monitor_path: PathLike, time_start: str | None, time_end: str | None, data_types: Sequence[str] | None
) -> list[Source]:
    """The CSV files of the run directories in the range (None: no limit), oldest directory first.

    Raises:
        ValueError: a bad time stamp, or no CSV file in the range; the message says what there is.
        FileNotFoundError: `monitor_path` is no directory.
    """
    if not os.path.isdir(monitor_path):
        raise FileNotFoundError(f"monitor_path: {os.fspath(monitor_path)!r} is no directory")
    runs = run_dirs_between(monitor_path, time_start, time_end)
    if not runs:
        every = run_dirs(monitor_path)
        there = f"they reach from {every[0].path.name} to {every[-1].path.name}" if every else "there is none at all"
        raise ValueError(f"{monitor_path}: no run directory between {time_start} and {time_end}; {there}")
    found: dict[tuple[RunDir, str], list[Path]] = {}
    for run in runs:
        for path in run.path.iterdir():
            if path.is_file():
                for data_type in data_types_of(path):
                    found.setdefault((run, data_type), []).append(path)
    recorded = sorted({data_type for _, data_type in found})
    if not recorded:
        raise ValueError(f"{monitor_path}: no CSV files in {len(runs)} run directories")
    wanted = recorded if data_types is None else [data_type for data_type in data_types if data_type in recorded]
    known = ", ".join(recorded)
    if not wanted:
        raise ValueError(f"data_type_list: {data_types} have no files in {monitor_path}; there are {known}")
    for missing in sorted(set(data_types or ()) - set(recorded)):
        logger.warning("data_type_list: %r has no files in %s; there are %s", missing, monitor_path, known)
    sources = []
    for (run, data_type), files in sorted(found.items()):
        if data_type not in wanted:
            continue
        files.sort(key=steps_of)
        sizes = [path.stat().st_size for path in files]
        sources.append(Source(run=run, data_type=data_type, files=files, sizes=sizes))
    return sources


def split(sources: Sequence[Source], process_num: int) -> list[tuple[Source, list[str], int]]:
    """Pieces of about equal size: consecutive files of a source, with their size in bytes."""
    if process_num == 1:
        return [(source, list(map(str, source.files)), sum(source.sizes)) for source in sources]
    limit = sum(sum(source.sizes) for source in sources) / (process_num * _PIECES_PER_PROCESS)
    pieces: list[tuple[Source, list[str], int]] = []
    for source in sources:
        files: list[str] = []
        size = 0
        for path, bytes_ in zip(source.files, source.sizes, strict=True):
            if files and size + bytes_ / 2 > limit:
                pieces.append((source, files, size))
                files, size = [], 0
            files.append(str(path))
            size += bytes_
        pieces.append((source, files, size))
    return pieces


def run_conversion(
    function: str, pieces: Sequence[Message], sizes: Sequence[int], process_num: int, description: str
) -> tuple[int, int]:
    """Run the pieces with a progress bar; broken lines are warned of.

    Returns:
        The number of rows converted and of lines passed over.
    """
    broken: dict[str, int] = {}
    order = sorted(range(len(pieces)), key=lambda number: -sizes[number])
    with progress_bar(sum(sizes), description) as advance:

        def report(message: Message) -> None:
            if "bytes" in message:
                advance(message["bytes"])
                return
            path = message["path"]
            broken[path] = broken.get(path, 0) + 1
            if broken[path] <= _BROKEN_LINES_SHOWN:
                logger.warning("%s", BrokenLine(path=Path(path), line=message["line"], reason=message["reason"]))

        results = run_pieces(function, [pieces[number] for number in order], process_num, report)
    for path, count in broken.items():
        if count > _BROKEN_LINES_SHOWN:
            logger.warning("%s: %d broken lines in all; only the first %d are shown", path, count, _BROKEN_LINES_SHOWN)
    return sum(result["rows"] for result in results), sum(broken.values())


def reporter(report: Callable[[Message], None]) -> Callable[[BrokenLine], None]:
    """What to call for broken lines in a piece."""
    return lambda line: report({"path": str(line.path), "line": line.line, "reason": line.reason})


@contextlib.contextmanager
def replacing_directory(target: Path, made_by: str) -> Iterator[Path]:
    """A directory to fill; at the end it takes the place of `target`, an absolute path; on an error it vanishes.

    Raises:
        FileExistsError: `target` exists, is not empty and was not made by `made_by`.
    """
    if target.is_symlink() or (target.exists() and not _is_ours(target, made_by)):
        raise FileExistsError(
            f"{target} exists and is no output of {made_by}: it is left alone; choose another output directory"
        )
    parent = Path(os.path.realpath(make_dir(target.parent)))
    filling = make_dir(parent / f".{target.name[:100]}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield filling
        write_json(filling / _MARKER, {"made_by": made_by})
        old = filling.with_suffix(".old")
        if target.exists():
            target.rename(old)
        filling.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(filling, ignore_errors=True)
        raise


def _is_ours(path: Path, made_by: str) -> bool:
    if not path.is_dir():
        return False
    if not any(path.iterdir()):
        return True
    try:
        return bool(json.loads((path / _MARKER).read_text())["made_by"] == made_by)
    except (OSError, ValueError, KeyError, TypeError):
        return False
