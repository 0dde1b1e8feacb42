"""A run's files, and graphs from the caches on disk in a second process."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = {"xy_distribution": True, "step_interval": 2, "ops": ["norm", "mean", "shape"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def train(folder: Path, name: str, *layers: str, **fields: object) -> tuple[dict, dict, dict, dict]:
    """What it prints, rows by data type, name and step, `run.json`, `coverage.json`."""
    out, config = folder / name, "none"
    if fields:
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**CONFIG, **fields}))
        config = str(path)
    environment = {
        **os.environ,
        "MONITOR_OUTPUT_DIR": str(out),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    command = [sys.executable, "-m", "tests.compiled.train_once", config, *layers]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    if not fields:
        return printed, {}, {}, {}
    rows = {}
    for file in sorted(out.rglob("actv*.csv")):
        with file.open() as lines:
            rows |= {(file.name, *row.values()): row for row in csv.DictReader(lines)}
    (run,), (coverage,) = (
        [json.loads(path.read_text()) for path in out.rglob(f"{one}.json")] for one in ("run", "coverage")
    )
    return printed, rows, run, coverage


def test_files_and_caches(folder):
    plain, *_ = train(folder, "plain")
    cold, rows, run, coverage = train(folder, "cold", inside_compiled=True)
    assert cold["losses"] == plain["losses"]
    assert coverage["missing"] == []
    assert set(run["inside_compiled"]) == {"stored", "recomputed"}
    inside = {(kind, name) for how in run["inside_compiled"].values() for kind, names in how.items() for name in names}
    assert {("actv", "first.output"), ("actv", "act@1.output"), ("actv_grad", "second.output")} <= inside
    assert len(inside) == sum(len(names) for how in run["inside_compiled"].values() for names in how.values())
    assert {kind for kind, _ in inside} == {"actv", "actv_grad"}

    warm, again, run_again, _ = train(folder, "warm", inside_compiled=True)
    assert warm["hits"] > 0
    assert warm["losses"] == plain["losses"]
    assert again.keys() == rows.keys()
    assert run_again["inside_compiled"] == run["inside_compiled"]

    if not os.environ.get("MSMON_WHOLE_TABLE"):
        return
    # Graphs with reads are not those without, nor those of another mode or of other names.
    unwatched, *_ = train(folder, "unwatched")
    assert unwatched["losses"] == plain["losses"]
    _, _, stored, missing = train(folder, "stored", inside_compiled="stored")
    assert set(stored["inside_compiled"]) == {"stored"}
    assert all(one["reason"].startswith("inside a compiled graph: only in the registers") for one in missing["missing"])
    other, _, renamed, _ = train(folder, "other", "one", "two", inside_compiled=True)
    assert other["losses"] == plain["losses"]
    assert "one.output" in renamed["inside_compiled"]["stored"]["actv"]
    assert not any("first" in name for how in renamed["inside_compiled"].values() for of in how.values() for name in of)
