"""Pipelines on two ranks: `torch.distributed.pipelining` and DeepSpeed's engine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from torch import multiprocessing

from .conftest import Row
from .pipelines import WAYS, compare, run
from .probe import Verdict

everywhere = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="a case of `make test-trainers`")


@pytest.mark.parametrize("way", [pytest.param(way, marks=everywhere) for way in WAYS])
def test_pipeline(way: str, tmp_path: Path, verdict: Row) -> None:
    if "DeepSpeed" in way:
        pytest.importorskip("deepspeed")
    multiprocessing.spawn(run, args=(str(tmp_path), way), nprocs=2)
    ranks = [Verdict(**json.loads((tmp_path / str(rank) / "verdict.json").read_text())) for rank in (0, 1)]
    joined = {
        column: "; ".join(f"rank {rank}: {said}" for rank, one in enumerate(ranks) if (said := getattr(one, column)))
        for column in ("losses", "rows", "steps", "coverage")
    }
    verdict(way, Verdict(**joined))


@everywhere
def test_split_backwards(tmp_path: Path) -> None:
    multiprocessing.spawn(compare, args=(str(tmp_path),), nprocs=2)
