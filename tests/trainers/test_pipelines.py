"""Pipelines on two ranks: `torch.distributed.pipelining` and DeepSpeed's engine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from torch import multiprocessing

from .conftest import Row
from .pipelines import WAYS, run
from .probe import Verdict

everywhere = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="a case of `make test-trainers`")

KNOWN = {
    "pipelining, 1F1B, shapes inferred": "the forward that infers shapes counts as a micro-step",
    "DeepSpeed PipelineEngine": "all micro-steps are 0",
}


def marks(way: str) -> list[pytest.MarkDecorator]:
    return [everywhere, pytest.mark.xfail(reason=KNOWN[way], strict=True)] if way in KNOWN else [everywhere]


@pytest.mark.parametrize("way", [pytest.param(way, marks=marks(way)) for way in WAYS])
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
