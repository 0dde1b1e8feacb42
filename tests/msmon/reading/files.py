"""Output directories written table by table, for cases that a small training does not have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from msmon.partials import PartialsWriter
from msmon_hooks import Shard, TensorRef
from msmon_io import CsvWriter, ParquetWriter, Table
from msmon_stats import finalize, partial


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


def write_sharded(
    directory: Path,
    cuts: Sequence[int],
    steps: Sequence[Mapping[str, np.ndarray]],
    *,
    ops: Sequence[str],
    ndigits: int = 3,
    parquet: bool = False,
    partials: bool = True,
) -> Path:
    """What ranks leave that hold consecutive shards of some tensors, the whole of which is given for each step."""
    for rank, (start, stop) in enumerate(pairwise(cuts)):
        run_dir = directory / f"Nov29_10-00-00-rank{rank}-{rank:08x}"
        run_dir.mkdir(parents=True)
        shard = {"data_types": ["grad_reduced"], "part": f"{start}:{stop}", "local_numel": stop - start}
        tensors = [
            {"name": name, "vpp_stage": 0, "numel": len(values), "shape": [len(values)], "dtype": "torch.float32"}
            for name, values in steps[0].items()
        ]
        info = {
            "rank": rank,
            "world_size": len(cuts) - 1,
            "config": {"ops": list(ops), "ndigits": ndigits, "step_count_per_record": 2},
            "tensors": [{**tensor, "shards": [shard]} for tensor in tensors],
        }
        (run_dir / "run.json").write_text(json.dumps(info))
        stored = PartialsWriter(run_dir, step_count_per_record=1)
        rows = CsvWriter(run_dir, ndigits=ndigits, step_count_per_record=2)
        with ParquetWriter(run_dir, rank=rank) if parquet else rows as writer:
            for step, values in enumerate(steps):
                matrix = np.stack([partial(whole[start:stop]) for whole in values.values()])
                refs = [
                    TensorRef(
                        "grad_reduced", name, 0, None, 0, (0,), (stop - start,), "torch.float32",
                        shard=Shard((len(whole),), (stop - start,), shard["part"]),
                    )
                    for name, whole in values.items()
                ]  # fmt: skip
                table = Table(data_type="grad_reduced", step=step, names=list(values), vpp_stages=[0] * len(values),
                              ops=list(ops), values=finalize(matrix, ops))  # fmt: skip
                writer.write(table)
                if partials:
                    stored.write(step, refs, matrix)
        stored.close()
    return directory
