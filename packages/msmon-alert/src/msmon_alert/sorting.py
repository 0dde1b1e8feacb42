"""First anomalies of a directory: reads the files of all ranks and keeps the first records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import attrs

from msmon_alert.anomaly_file import FILE_NAME
from msmon_alert.ordering import FirstRecords
from msmon_alert.reading import BrokenFileError, RecordReader
from msmon_alert.record import Record


@attrs.frozen(kw_only=True)
class SortedAnomalies:
    """What `first_anomalies` found."""

    first: dict[str, Record]
    """Key -> record, the earliest first."""
    seen: int
    """How many usable records there were."""
    files: int
    unread: int
    """Files that broke off or could not be read."""
    notes: tuple[str, ...]
    """One line for each file or record that was skipped, and why."""


def find_anomaly_files(directory: str | Path) -> list[Path]:
    """`rank*/anomaly.json` below the directory or below its `anomaly_detected`, in the order of ranks; or the one file
    in the directory itself. Empty if there is none.

    >>> find_anomaly_files("/nowhere")
    []
    """
    folder = Path(directory)
    for base in (folder, folder / "anomaly_detected"):
        found = [path for path in base.glob(f"rank*/{FILE_NAME}") if path.is_file()]
        if found:
            return sorted(found, key=lambda path: (len(path.parent.name), path.parent.name))
    return [folder / FILE_NAME] if (folder / FILE_NAME).is_file() else []


def first_anomalies(
    files: Iterable[str | Path],
    count: int,
    *,
    steps: Collection[int] = (),
    advance: Callable[[int], object] = lambda files: None,
) -> SortedAnomalies:
    """The first `count` anomalies of these files, in the order of events.

    Order: step, micro-step, phase (weights, forward, backward, optimizer), pipeline position (small first in forward,
    large first otherwise; virtual stage before pipeline stage), call id, rank. Files are read as a stream; memory
    depends on `count` alone. A broken file is used up to where it breaks.

    Args:
        files: `anomaly.json` files, of this or the older tool.
        count: at least 1.
        steps: only these steps; empty: all.
        advance: called after each file, with 1.

    >>> import tempfile
    >>> from msmon_alert import Alert, AnomalyFile, Fired, anomaly_record
    >>> folder = tempfile.mkdtemp()
    >>> fired = (Fired(stat="norm", rule="AnomalyNan", value=float("nan"), history=None),)
    >>> for rank in (0, 1):
    ...     with AnomalyFile(f"{folder}/rank{rank}") as file:
    ...         alert = Alert(tag=f"0:fc.weight/rank{rank}/grad_reduced", step=5 - rank, index=0, fired=fired)
    ...         file.write([anomaly_record(alert, rank=rank, call_id=7)])
    >>> list(first_anomalies(find_anomaly_files(folder), 1).first)
    ['0:fc.weight/rank1/grad_reduced_step_4_call_7']
    """
    first = FirstRecords(count)
    wanted = frozenset(steps)
    notes: list[str] = []
    seen = read = unread = 0
    for path in files:
        before = seen
        read += 1
        try:
            for key, record in RecordReader(path):
                if not (isinstance(record, dict) and "step" in record):
                    notes.append(f"{path}: record {key!r} skipped: it is not an object with a step")
                    continue
                if wanted and record["step"] not in wanted:
                    continue
                try:
                    first.add(key, record)
                except ValueError as error:
                    notes.append(f"{path}: record {key!r} skipped: {error}")
                else:
                    seen += 1
        except (BrokenFileError, OSError) as error:
            unread += 1
            kept = f" (its first {seen - before} records are used)" if seen > before else ""
            notes.append(f"broken file skipped{kept}: {error}")
        advance(1)
    return SortedAnomalies(first=dict(first), seen=seen, files=read, unread=unread, notes=tuple(notes))
