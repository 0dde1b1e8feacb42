"""What the alerts of one training are worth: compares the first anomaly with the fault that was injected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msmon_alert import find_anomaly_files, first_anomalies
from msmon_alert.tag import Tag

from .faults import EXACT
from .training import Case

WITHIN = 2
"""A fault that is not a NaN or Inf counts as found up to so many steps later."""


@dataclass(frozen=True)
class Verdict:
    """The first anomaly of one case, judged."""

    case: Case
    world: int
    answer: dict[str, Any]
    """The fault as it was drawn; empty for a healthy run."""
    first: dict[str, Any] | None
    false_alarms: int
    """Anomalies before the fault, or in a healthy run."""

    @property
    def step_error(self) -> int | None:
        return None if self.first is None else self.first["step"] - self.answer["step"]

    @property
    def found(self) -> bool:
        """In time and not too early."""
        limit = 0 if self.case.fault in EXACT else WITHIN
        return self.step_error is not None and 0 <= self.step_error <= limit

    @property
    def right_layer(self) -> bool:
        if self.first is None:
            return False
        tag = Tag.parse(self.first["tag_name"])
        if self.answer["data_types"]:
            return tag.data_type in self.answer["data_types"]
        return any(
            tag.module == layer or (layer.endswith("*") and tag.module.startswith(layer[:-1]))
            for layer in self.answer["layers"]
        )

    @property
    def right_rank(self) -> bool:
        return self.first is not None and self.answer["rank"] in (None, self.first["rank"])

    @property
    def hit(self) -> bool:
        return self.found and self.right_layer and self.right_rank

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        fields = json.loads(text)
        return cls(**fields | {"case": Case(**fields["case"])})


def judge(case: Case, world: int, out: Path) -> Verdict:
    """Reads what `train` left under `out`."""
    folder = out / case.name
    files = find_anomaly_files(folder)
    assert len(files) == world, f"{folder}: anomaly files of {len(files)} ranks, not {world}"
    answer = json.loads((folder / "fault.json").read_text()) if case.fault else {}
    found = first_anomalies(files, 10_000)
    assert not found.notes, found.notes
    records = list(found.first.values())
    early = [record for record in records if not answer or record["step"] < answer["step"]]
    return Verdict(case, world, answer, records[0] if records else None, len(early))


def report(verdicts: Sequence[Verdict]) -> str:
    """A table with one line for each kind of fault, then the healthy runs, then every miss."""
    lines = [f"{'fault':<28}{'runs':>5}{'found':>7}{'step error':>12}{'layer':>7}{'rank':>6}{'false alarms':>14}"]
    kinds = dict.fromkeys(v.answer["name"] for v in verdicts if v.answer)
    for kind in kinds:
        lines.append(_line(kind, [v for v in verdicts if v.answer and v.answer["name"] == kind]))
    lines.append(_line("all", [v for v in verdicts if v.answer]))
    healthy = [v for v in verdicts if not v.answer]
    alarms = sum(v.false_alarms > 0 for v in healthy)
    lines.append(f"healthy runs: {len(healthy)}, of them with an alarm: {alarms}")
    lines += [line(v) for v in verdicts if (v.false_alarms if not v.answer else not v.hit)]
    return "\n".join(lines)


def line(verdict: Verdict) -> str:
    """One training in one line."""
    name = f"{verdict.case.name} on {verdict.world} rank{'s' * (verdict.world > 1)}"
    if not verdict.answer:
        return f"{name}: FALSE ALARM: {verdict.first['message']}" if verdict.first else f"{name}: quiet"
    if verdict.hit:
        return f"{name}: found, step error {verdict.step_error}"
    drawn = {key: verdict.answer[key] for key in ("step", "rank", "layers", "size")}
    return f"{name}: MISSED {drawn}: {verdict.first['message'] if verdict.first else 'nothing found'}"


def _line(kind: str, verdicts: Sequence[Verdict]) -> str:
    errors = [v.step_error for v in verdicts if v.step_error is not None]
    spread = f"{min(errors)}..{max(errors)}" if errors else "-"
    return (
        f"{kind:<28}{len(verdicts):>5}{_share(v.found for v in verdicts):>7}{spread:>12}"
        f"{_share(v.right_layer for v in verdicts):>7}{_share(v.right_rank for v in verdicts):>6}"
        f"{sum(v.false_alarms > 0 for v in verdicts):>14}"
    )


def _share(flags: Iterable[bool]) -> str:
    """Rounded down: all but one is not 100 %."""
    values = list(flags)
    return f"{100 * sum(values) // len(values)}%" if values else "-"
