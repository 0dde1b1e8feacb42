"""A run of any size in the Parquet store, without training it: what a long job of a large model leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from msmon.partials import PartialsWriter
from msmon.reading.written_digits import to_partials
from msmon_hooks import Shard, TensorRef

#: As msmon_io.ParquetWriter cuts its files.
ROWS_PER_FILE = 1 << 16
#: Elements of a tensor that is sharded.
NUMEL = 1 << 20
STATS = ("norm", "min", "max", "mean", "zeros", "nans")
MODULES = (
    "attention.query.weight",
    "attention.key.weight",
    "attention.value.weight",
    "attention.output.weight",
    "attention.output.bias",
    "norm1.weight",
    "norm2.weight",
    "mlp.gate.weight",
    "mlp.up.weight",
    "mlp.down.weight",
)


def tensor_names(count: int) -> list[str]:
    """In the order of a backward pass, as the files of unreduced gradients have it."""
    names = [f"layers.{i // len(MODULES)}.{MODULES[i % len(MODULES)]}" for i in range(count - 1)]
    return ["head.weight", *reversed(names)]


def write_large_run(
    directory: Path, *, tensors: int, steps: int, ranks: int, seed: int = 0, data_type: str = "grad_unreduced"
) -> Path:
    """Norms that fall slowly with noise, one spike and one NaN; the same on every call with the same arguments.

    With another data type than gradients before the reduction each rank holds a shard of every tensor, and stores
    partials.
    """
    names = tensor_names(tensors)
    group_steps = -(-ROWS_PER_FILE // tensors)
    dictionary = pa.array(names)
    codes = pa.array(np.tile(np.arange(tensors, dtype=np.int32), group_steps))
    scale = 10.0 ** np.random.default_rng(1).uniform(-4, 1, tensors)
    for rank in range(ranks):
        random = np.random.default_rng([seed, rank])
        run_dir = directory / f"Nov29_10-00-{rank:02d}-rank{rank}-{rank:08x}"
        store = directory / "parquet" / f"rank={rank}" / f"data_type={data_type}"
        run_dir.mkdir(parents=True)
        store.mkdir(parents=True)
        info = {"schema": 1, "msmon": "0.1.0", "framework": "torch", "engine": "ddp", "rank": rank, "world_size": ranks}
        info |= {"pp_stage": 0, "config": {"wg_distribution": True}}
        refs = []
        if data_type != "grad_unreduced":
            local = NUMEL // ranks
            shard = {"data_types": [data_type], "part": f"{rank * local}:{(rank + 1) * local}", "local_numel": local}
            info["tensors"] = [{"name": name, "vpp_stage": 0, "numel": NUMEL, "shards": [shard]} for name in names]
            held = Shard((NUMEL,), (local,), shard["part"])
            refs = [
                TensorRef(data_type, name, 0, None, 0, (0,), (local,), "torch.float32", shard=held) for name in names
            ]
        (run_dir / "run.json").write_text(json.dumps(info))
        partials = PartialsWriter(run_dir, step_count_per_record=group_steps)
        for first in range(0, steps, group_steps):
            count = min(group_steps, steps - first)
            table = _table(random, dictionary, codes, scale, first, count, tensors, rank, run_dir.name)
            parquet.write_table(table, store / f"{run_dir.name}_{first}.parquet", compression="zstd")
            if refs:
                values = {stat: table[stat].to_numpy() for stat in STATS}
                matrix = to_partials(values, NUMEL // ranks).reshape(count, tensors, -1)
                for at in range(count):
                    partials.write(first + at, refs, matrix[at])
        partials.close()
    return directory


def _table(random, dictionary, codes, scale, first, count, tensors, rank, run) -> pa.Table:
    step = np.arange(first, first + count)
    noise = np.exp(0.1 * random.standard_normal((count, tensors)))
    norm = scale * noise / np.sqrt(1 + step[:, None] / 100)
    if first <= 700 < first + count and rank == min(3, rank):
        norm[700 - first, tensors // 2] *= 1e3
        norm[700 - first, tensors // 2 + 1] = np.nan
    extreme = norm * (1 + random.random((count, tensors))) / 100
    columns = {
        "norm": norm,
        "min": -extreme,
        "max": extreme * 1.01,
        "mean": extreme * random.standard_normal((count, tensors)) / 100,
        "zeros": np.round(random.random((count, tensors)), 3) / 10,
        "nans": np.isnan(norm).astype(np.int64),
    }
    rows = count * tensors
    return pa.table(
        {
            "run": pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), [run]),
            "vpp_stage": pa.array(np.zeros(rows, dtype=np.int32)),
            "name": pa.DictionaryArray.from_arrays(codes.slice(0, rows), dictionary),
            "step": pa.array(np.repeat(step, tensors)),
            "micro_step": pa.nulls(rows, pa.int32()),
            **{stat: pa.array(columns[stat].ravel()) for stat in STATS},
        }
    )
