"""Runs of several ranks as the writers leave them, without training: for who should be equal to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msmon_io
from msmon.config import Config
from msmon.run_info import now, run_info
from msmon_hooks.layout import Layout
from msmon_io import Table

STATS = ("norm", "min", "max", "mean")
Value = Callable[[int, int], float | str]
"""rank, step -> the norm of a tensor, or a fingerprint (all statistics are then 1)."""


def write_run(
    directory: Path,
    values: dict[str, dict[str, Value]],
    layouts: Callable[[int, str], Layout | None],
    *,
    ranks: int = 2,
    steps: int = 6,
    stages: Sequence[int] | None = None,
    shards: Callable[[int, str], str] = lambda rank, name: "",
    dtype: str = "torch.float32",
    numel: int = 100,
) -> Path:
    """Data type -> name -> values; a name of another stage is not written where `layouts` gives None."""
    for rank in range(ranks):
        run_dir = msmon_io.create_run_dir(directory, rank)
        config = Config(format=["parquet"], ops=list(STATS), wg_distribution=True)
        info = run_info(config, framework="torch", rank=rank, world_size=ranks)
        names = dict.fromkeys(name for tensors in values.values() for name in tensors)
        held = {name: layouts(rank, name) for name in names}
        info["pp_stage"] = 0 if stages is None else stages[rank]
        info["tensors"] = [_entry(n, held[n], shards(rank, n), dtype, numel) for n in names if held[n] is not None]
        context = msmon_io.WriterContext(run_dir=run_dir, rank=rank, ndigits=6, step_count_per_record=1)
        writer = msmon_io.open_writer("parquet", context)
        for step in range(steps):
            for data_type, tensors in values.items():
                table = _table(data_type, step, {n: f(rank, step) for n, f in tensors.items() if held[n] is not None})
                writer.write(table)
            writer.flush()
        writer.close()
        msmon_io.write_json(run_dir / "run.json", {**info, "end_time": now()}, root=run_dir)
    return directory


def _entry(name: str, layout: Layout | None, part: str, dtype: str, numel: int) -> dict[str, Any]:
    cut = [{"data_types": ["param_origin", "param_updated", "grad_reduced"], "part": part, "local_numel": numel // 2}]
    told = {} if layout is None else {"layout": layout.to_dict()}
    return {"name": name, "vpp_stage": 0, "numel": numel, "dtype": dtype, "shards": cut if part else [], **told}


def _table(data_type: str, step: int, found: dict[str, float | str]) -> Table:
    prints = {name: value for name, value in found.items() if isinstance(value, str)}
    norms = [1.0 if isinstance(value, str) else value for value in found.values()]
    return Table(
        data_type=data_type,
        step=step,
        names=list(found),
        vpp_stages=[0] * len(found),
        micro_steps=[0] * len(found) if data_type == "actv" else None,
        ops=[*STATS, *(["fingerprint"] if prints else [])],
        values=[[norm, -norm, norm, norm / 10] for norm in norms],
        text={"fingerprint": [str(value) for value in found.values()]} if prints else {},
    )
