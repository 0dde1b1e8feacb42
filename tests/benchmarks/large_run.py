"""A run of any size in the Parquet store, without training it: what a long job of a large model leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

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
    names = [f"layers.{i // len(MODULES)}.{MODULES[i % len(MODULES)]}" for i in range(count - 1)]
    return [*names, "head.weight"]


def write_large_run(
    directory: Path, *, tensors: int, steps: int, ranks: int, seed: int = 0, group_steps: int = 100
) -> Path:
    """Norms that fall slowly with noise, one spike and one NaN; the same on every call with the same arguments."""
    names = tensor_names(tensors)
    dictionary = pa.array(names)
    codes = pa.array(np.tile(np.arange(tensors, dtype=np.int32), group_steps))
    scale = 10.0 ** np.random.default_rng(1).uniform(-4, 1, tensors)
    for rank in range(ranks):
        random = np.random.default_rng([seed, rank])
        run_dir = directory / f"Nov29_10-00-{rank:02d}-rank{rank}-{rank:08x}"
        store = run_dir / "parquet" / "data_type=grad_unreduced"
        store.mkdir(parents=True)
        info = {"schema": 1, "msmon": "0.1.0", "framework": "torch", "engine": "ddp", "rank": rank, "world_size": ranks}
        (run_dir / "run.json").write_text(json.dumps(info | {"pp_stage": 0, "config": {"wg_distribution": True}}))
        with parquet.ParquetWriter(store / "part-0.parquet", _schema(), compression="zstd", compression_level=1) as file:
            for first in range(0, steps, group_steps):
                count = min(group_steps, steps - first)
                file.write_table(_table(random, dictionary, codes, scale, first, count, tensors, rank))
    return directory


def _schema() -> pa.Schema:
    columns = [("vpp_stage", pa.int32()), ("name", pa.dictionary(pa.int32(), pa.string())), ("step", pa.int64())]
    return pa.schema(columns + [(stat, pa.float64()) for stat in STATS])


def _table(random, dictionary, codes, scale, first, count, tensors, rank) -> pa.Table:
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
        "nans": np.isnan(norm).astype(np.float64),
    }
    arrays = [
        pa.array(np.zeros(count * tensors, dtype=np.int32)),
        pa.DictionaryArray.from_arrays(codes.slice(0, count * tensors), dictionary),
        pa.array(np.repeat(step, tensors)),
        *(pa.array(columns[stat].ravel()) for stat in STATS),
    ]
    return pa.table(arrays, schema=_schema())
