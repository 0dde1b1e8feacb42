"""Output directories written table by table, for cases that a small training does not have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msmon_io import CsvWriter, Table


def write_rank(
    directory: Path,
    rows: Mapping[str, Sequence[tuple[Any, ...]]],
    *,
    ops: Sequence[str] = ("norm",),
    rank: int = 0,
    stamp: str = "Nov29_10-00-00",
    info: Mapping[str, Any] | None = None,
    coverage: Mapping[str, Any] | None = None,
    steps_per_file: int = 1,
    stage: int = 0,
) -> Path:
    """One run directory. `rows`: data type -> (step, name, values...) or (step, name, micro-step, values...)."""
    run_dir = directory / f"{stamp}-rank{rank}-{rank:08x}"
    run_dir.mkdir(parents=True)
    with CsvWriter(run_dir, ndigits=9, step_count_per_record=steps_per_file) as writer:
        steps = sorted({row[0] for table in rows.values() for row in table})
        for step in steps:
            for data_type, table in rows.items():
                here = [row for row in table if row[0] == step]
                micro = bool(here) and len(here[0]) == len(ops) + 3
                writer.write(
                    Table(
                        data_type=data_type,
                        step=step,
                        names=[row[1] for row in here],
                        vpp_stages=[stage] * len(here),
                        micro_steps=[row[2] for row in here] if micro else None,
                        ops=list(ops),
                        values=[list(row[-len(ops) :]) for row in here],
                    )
                )
            writer.flush()
    if info is not None:
        (run_dir / "run.json").write_text(json.dumps({"schema": 1, "rank": rank, **info}))
    if coverage is not None:
        (run_dir / "coverage.json").write_text(json.dumps({"schema": 1, **coverage}))
    return run_dir


def write_anomalies(directory: Path, rank: int, records: Sequence[Mapping[str, Any]]) -> Path:
    """`anomaly.json` of one rank as the older tool writes it: no fields beyond the common ones."""
    folder = directory / "anomaly_detected" / f"rank{rank}"
    folder.mkdir(parents=True)
    document = {}
    for number, record in enumerate(records):
        entry = {
            "rank": rank,
            "micro_step": 0,
            "pp_stage": 0,
            "vpp_stage": 0,
            "call_id": number,
            "message": "Rule AnomalyNan reports anomaly signal",
            "group_mates": [0, 1],
            **record,
        }
        document[f"{entry['tag_name']}_step_{entry['step']}_call_{entry['call_id']}"] = entry
    path = folder / "anomaly.json"
    path.write_text(json.dumps(document))
    return path
