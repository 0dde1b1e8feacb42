"""MindSpore's example runs as its docstring says."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_example(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "mindspore_mlp.py")]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "MONITOR_OUTPUT_DIR": str(tmp_path / "out"), "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "out").glob("*-rank0-*")
    assert json.loads((run_dir / "run.json").read_text())["framework"] == "mindspore"
    coverage = json.loads((run_dir / "coverage.json").read_text())
    assert coverage["missing"] == []
    assert coverage["notes"] == []
    with (run_dir / "grad_reduced_7-7.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(float(row["norm"]) > 0 and row["nans"] == "0" for row in rows)
