"""The anomalies of a run: the first ones in the order in which they happened, and how they spread."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from msmon.reading.index import TensorKey
from msmon_alert.ordering import FirstRecords
from msmon_alert.reading import BrokenFileError, RecordReader
from msmon_alert.record import PHASE_NAMES, phase
from msmon_alert.tag import Tag
from msmon_hooks import DATA_TYPES

#: How many anomalies are kept one by one; the others are counted.
KEPT = 500
#: How many (data type, tensor, step) are kept to be marked.
MARKED = 50_000


@attrs.frozen(kw_only=True)
class Anomaly:
    """One tensor in one step on one rank, with everything that fired on it."""

    step: int
    micro_step: int | None
    rank: int
    phase: str
    """`weights`, `forward`, `backward` or `optimizer`."""
    data_type: str
    tensor: TensorKey
    stats: tuple[str, ...]
    """The statistics that fired; empty in files of the older tool."""
    values: tuple[str, ...]
    """Their values, as they are to be shown."""
    message: str

    COLUMNS: ClassVar = ("step", "micro-step", "phase", "rank", "data type", "tensor", "what fired")

    def cells(self) -> tuple[object, ...]:
        """What a table of `COLUMNS` says of it."""
        micro_step = "" if self.micro_step is None else self.micro_step
        return self.step, micro_step, self.phase, self.rank, self.data_type, self.tensor.label(), self.fired()

    def fired(self) -> str:
        """What fired: each statistic with its value, or the message of the older tool."""
        return ", ".join(f"{stat} {value}" for stat, value in zip(self.stats, self.values, strict=True)) or self.message


@attrs.frozen(kw_only=True)
class StepSpread:
    """How far anomalies reached in one step."""

    step: int
    tensors: int
    """Tensors of all data types, each once however many ranks."""
    ranks: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Anomalies:
    """What the anomaly files of all ranks say."""

    total: int
    first: Sequence[Anomaly]
    """The first `KEPT`, earliest first."""
    spread: Sequence[StepSpread]
    """Every step with anomalies, ascending."""
    marks: Mapping[str, frozenset[tuple[TensorKey, int]]]
    """Data type -> tensors and steps, at most `MARKED` in all, the first in the files."""


def read_anomalies(directory: Path, notes: list[str], only: Collection[int] | None = None) -> Anomalies:
    """Read `anomaly_detected/rank*/anomaly.json` under an output directory, or beside a run directory.

    A damaged file is read up to the damage, and `notes` says so.

    Args:
        only: ranks; the files of others are of another launch.
    """
    first = FirstRecords(KEPT)
    steps: dict[int, set[tuple[str, TensorKey]]] = {}
    ranks: dict[int, set[int]] = {}
    marks: dict[str, set[tuple[TensorKey, int]]] = {}
    total = marked = 0
    files = _files(directory)
    own = [path for path in files if only is None or path.parent.name in {f"rank{rank}" for rank in only}]
    if len(own) < len(files):
        others = ", ".join(path.parent.name for path in files if path not in own)
        notes.append(f"the anomalies of {others} are left out: another launch wrote them")
    for path in own:
        try:
            for key, record in RecordReader(path):
                try:
                    first.add(key, record)
                    anomaly = _anomaly(record)
                except (ValueError, AttributeError) as error:
                    notes.append(f"{path}: the record {key!r:.80} was left out: {error}")
                    continue
                total += 1
                steps.setdefault(anomaly.step, set()).add((anomaly.data_type, anomaly.tensor))
                ranks.setdefault(anomaly.step, set()).add(anomaly.rank)
                if marked < MARKED:
                    marked += 1
                    marks.setdefault(anomaly.data_type, set()).add((anomaly.tensor, anomaly.step))
        except (BrokenFileError, OSError) as error:
            notes.append(str(error))
    return Anomalies(
        total=total,
        first=[_anomaly(record) for _, record in first],
        spread=[
            StepSpread(step=step, tensors=len(steps[step]), ranks=tuple(sorted(ranks[step]))) for step in sorted(steps)
        ],
        marks={data_type: frozenset(found) for data_type, found in marks.items()},
    )


def _files(directory: Path) -> list[Path]:
    for base in (directory, directory.parent):
        files = sorted((base / "anomaly_detected").glob("rank*/anomaly.json"))
        if files:
            # Of one run directory only its own rank's anomalies.
            rank = re.search(r"-rank(\d+)", directory.name)
            own = [path for path in files if rank and path.parent.name == f"rank{rank[1]}"]
            return own if base != directory and own else files
    return []


def _anomaly(record: Mapping[str, Any]) -> Anomaly:
    tag = Tag.parse(record["tag_name"], _in_micro_steps)
    fired = record.get("stats")
    stats = fired if isinstance(fired, Mapping) else {}
    return Anomaly(
        step=record["step"],
        micro_step=record.get("micro_step"),
        rank=record["rank"],
        phase=PHASE_NAMES[phase(record)],
        data_type=tag.data_type,
        tensor=TensorKey(record["pp_stage"], record["vpp_stage"], tag.name),
        stats=tuple(stats),
        values=tuple(_value(one) for one in stats.values()),
        message=str(record.get("message", "")),
    )


def _in_micro_steps(data_type: str) -> bool:
    return data_type in DATA_TYPES and DATA_TYPES[data_type].in_micro_steps


def _value(fired: object) -> str:
    value = fired.get("value") if isinstance(fired, Mapping) else None
    return f"{value:.4g}" if isinstance(value, (int, float)) else str("" if value is None else value)
