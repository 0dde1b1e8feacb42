"""`python -m msmon_alert`: the first anomalies of all ranks."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from msmon_alert.anomaly_file import FILE_NAME
from msmon_alert.causes import explain
from msmon_alert.files import replaced
from msmon_alert.sorting import SortedAnomalies, find_anomaly_files, first_anomalies
from msmon_alert.table import printable, render, row

RESULT_NAME = "anomaly_analyse.json"
_TOLD_FROM = 1000
"""How many of the first anomalies make up the account of how it spread."""


Progress = Callable[[int, str], AbstractContextManager[Callable[[int], object]]]
"""Given how many units there are and what they are: yields what to call when more are done."""


def main(
    argv: Sequence[str] | None = None, *, progress: Progress = lambda total, what: nullcontext(lambda units: None)
) -> int:
    """Runs the command line; returns the exit status.

    0: sorted, also when there is no anomaly or some file was broken. 1: no file could be read, or the result could not
    be written. 2: arguments that make no sense, a directory without anomaly files among them.
    """
    parser = _Parser(
        prog="msmon anomalies",
        description="Shows the first anomalies of all ranks, earliest first, and writes them to anomaly_analyse.json.",
    )
    parser.add_argument(
        "-d", "--data_path", required=True, metavar="DIR", help="directory with rank*/anomaly.json (or the one above)"
    )
    parser.add_argument("-o", "--out_path", metavar="DIR", help="folder for anomaly_analyse.json (default: DIR of -d)")
    parser.add_argument("-k", "--topk", default="8", metavar="K", help="how many anomalies (default: 8)")
    parser.add_argument("-s", "--step_list", default="[]", metavar="LIST", help='only these steps, as in "[1,2]"')
    try:
        options = parser.parse_args(argv)
        count = _positive(options.topk)
        steps = _steps(options.step_list)
        files = _find_files(Path(options.data_path))
        out = _out_folder(options.out_path, files[0])
    except _ArgumentError as error:
        print(f"msmon anomalies: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:  # --help
        return int(end.code or 0)
    with progress(len(files), "anomaly files") as advance:
        found = first_anomalies(files, max(count, _TOLD_FROM), steps=steps, advance=advance)
    return _show(found, out, count)


def _show(found: SortedAnomalies, out: Path, count: int) -> int:
    for note in found.notes:
        print(note, file=sys.stderr)
    target = out / RESULT_NAME
    try:
        with replaced(target) as file:
            file.write(json.dumps(dict(itertools.islice(found.first.items(), count)), indent=2).encode())
        where, status = f"Written to {target}", 0
    except OSError as error:
        where, status = f"Not written: {target}: {error}", 1
    try:
        print(_text(found, count))
        print(where, flush=True)
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if found.unread == found.files and not found.seen else status


def _text(found: SortedAnomalies, count: int) -> str:
    records = list(found.first.values())
    if not records:
        return "No anomalies."
    table = render(
        [row(record) for record in records[:count]], colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ
    )
    account = "\n".join(map(printable, explain(records)))
    shown = min(count, len(records))
    return f"{table}\n\n{account}\n{shown} of {found.seen} anomalies in {found.files} files, earliest first."


class _ArgumentError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ArgumentError(f"{message} (-h for help)")


def _positive(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise _ArgumentError(f"-k/--topk: {text!r} is not allowed; it takes an integer >= 1")
    return min(count, sys.maxsize)


def _steps(text: str) -> frozenset[int]:
    try:
        steps: Any = json.loads(text)
    except (ValueError, RecursionError):
        steps = None
    if not isinstance(steps, list) or not all(type(step) is int and step >= 0 for step in steps):
        raise _ArgumentError(f'-s/--step_list: {text!r} is not allowed; it takes a list of step numbers, as in "[1,2]"')
    return frozenset(steps)


def _find_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise _ArgumentError(f"-d/--data_path: {folder} is not a directory")
    files = find_anomaly_files(folder)
    if not files:
        raise _ArgumentError(
            f"-d/--data_path: no rank*/{FILE_NAME} in {folder}; name the anomaly_detected directory of a run"
        )
    return files


def _out_folder(text: str | None, file: Path) -> Path:
    out = file.parent.parent if text is None else Path(text)
    if out.exists() and not out.is_dir():
        raise _ArgumentError(f"-o/--out_path: {out} is not a directory")
    return out
