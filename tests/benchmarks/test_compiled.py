"""What a step costs more that looks inside of compiled graphs. `make bench ARGS="-k compiled"` prints the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table():
    """Collects the figures of this run and prints them at its end."""
    rows: dict[str, dict[str, float]] = {}
    yield rows
    for dtype, row in rows.items():
        print(f"\n{dtype:9}", *(f"{name} {ratio:.3f}" for name, ratio in row.items()), sep="  ")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_steps(dtype, benchmark, table):
    if benchmark.disabled:
        pytest.skip("compiles for minutes; tests/compiled trains the same")

    def child() -> dict[str, float]:
        command = [sys.executable, "-m", "tests.benchmarks.compiled", dtype]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    table[dtype] = benchmark.pedantic(child, rounds=1)
    benchmark.extra_info.update(table[dtype])
