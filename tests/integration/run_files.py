"""Reads what a monitor on rank 0 wrote."""

import csv
import json
from pathlib import Path


def table(run_dir: Path, data_type: str, step: int) -> dict[str, dict[str, str]]:
    with (run_dir / f"{data_type}_{step}-{step}.csv").open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def run_dir(output_dir: Path) -> Path:
    return next(iter(output_dir.glob("*-rank0-*")))


def coverage(output_dir: Path) -> dict:
    return json.loads((run_dir(output_dir) / "coverage.json").read_text())
