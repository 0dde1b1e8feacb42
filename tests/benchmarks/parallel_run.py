"""A data-parallel run of any size through the real writers, without training it: what a long job leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import msmon_io
from msmon.config import Config
from msmon.run_info import now, run_info
from msmon_hooks.layout import Layout
from msmon_io import Table

from .large_run import NUMEL, tensor_names

STATS = ("norm", "min", "max", "mean", "zeros", "nans")
DATA_TYPES = ("grad_unreduced", "grad_reduced", "param_origin", "exp_avg", "param_updated")


def write_parallel_run(directory: Path, *, parameters: int, steps: int, ranks: int) -> Path:
    """Five rows of each parameter at each step on each rank, of six statistics: gradients before and after the
    reduction, which is their mean, weights before and after the update, and a moment. Everything holds."""
    names = tensor_names(parameters)
    stages = [0] * parameters
    layout = Layout(equal_over={"data": range(ranks)}, summed_over={"data": range(ranks)}, divided_by=ranks)
    entry = {"vpp_stage": 0, "numel": NUMEL, "dtype": "torch.float32", "shards": [], "layout": layout.to_dict()}
    writers, infos = [], []
    for rank in range(ranks):
        run_dir = msmon_io.create_run_dir(directory, rank)
        config = Config(format=["parquet"], ops=list(STATS), wg_distribution=True, param_distribution=True)
        info = run_info(config, framework="torch", rank=rank, world_size=ranks)
        infos.append((run_dir, {**info, "engine": "ddp", "tensors": [{"name": name, **entry} for name in names]}))
        context = msmon_io.WriterContext(run_dir=run_dir, rank=rank, ndigits=6, step_count_per_record=1)
        writers.append(msmon_io.open_writer("parquet", context))
    random = np.random.default_rng(0)
    scale = 10.0 ** random.uniform(-4, 1, parameters)
    weights = _statistics(random, scale)
    for step in range(steps):
        before = [_statistics(random, scale) for _ in range(ranks)]
        after = np.mean(before, axis=0)
        moment, updated = _statistics(random, scale), weights * (1 + 1e-4 * random.random((parameters, 1)))
        for rank, writer in enumerate(writers):
            for data_type, values in zip(DATA_TYPES, (before[rank], after, weights, moment, updated), strict=True):
                table = Table(
                    data_type=data_type, step=step, names=names, vpp_stages=stages, ops=list(STATS), values=values
                )
                writer.write(table)
            writer.flush()
        weights = updated
    for (run_dir, info), writer in zip(infos, writers, strict=True):
        writer.close()
        msmon_io.write_json(run_dir / "run.json", {**info, "end_time": now()}, root=run_dir)
    return directory


def _statistics(random: np.random.Generator, scale: np.ndarray) -> np.ndarray:
    """Float64 `[parameters, 6]`, in the order of `STATS`."""
    norm = scale * np.exp(0.1 * random.standard_normal(len(scale)))
    extreme = norm * (1 + random.random(len(scale))) / 100
    mean = norm / np.sqrt(NUMEL) * random.standard_normal(len(scale)) / np.sqrt(NUMEL)
    return np.stack([norm, -extreme, extreme * 1.01, mean, np.zeros(len(scale)), np.zeros(len(scale))], axis=1)
