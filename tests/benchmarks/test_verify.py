"""Time and memory of `msmon verify` on a data-parallel run of 8 ranks, 5,000 tensors and 1,000 steps.

The tensors are five rows of each of 1,000 parameters, in the Parquet store with six statistics: 40 million rows.
Without `--benchmark-enable` a run of a few tensors goes through the same code once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .parallel_run import DATA_TYPES, write_parallel_run
from .test_reading import Size, check, msmon

VERIFY_SECONDS = 60


@pytest.fixture(scope="module")
def size(request: pytest.FixtureRequest) -> Size:
    if request.config.getoption("benchmark_disable") and not request.config.getoption("benchmark_enable"):
        return Size(40, 12, 2, False)
    return Size(5000, 1000, 8, True)


def test_verify(benchmark, size: Size, tmp_path: Path) -> None:
    parameters = size.tensors // len(DATA_TYPES)
    write_parallel_run(tmp_path / "run", parameters=parameters, steps=size.steps, ranks=size.ranks)

    def verify():
        used = msmon("verify", tmp_path / "run")
        assert used.status == 0
        return used

    check(benchmark, "verify", size, VERIFY_SECONDS, verify)
    words = [sys.executable, "-m", "msmon", "verify", str(tmp_path / "run"), "--json"]
    report = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    states = {one["invariant"]: (one["state"], one["comparisons"]) for one in report["outcomes"]}
    # Weights, a moment and reduced gradients; each rank with the first.
    assert states["replicas"] == ("holds", 4 * parameters * size.steps * (size.ranks - 1))
    assert states["reductions"] == ("holds", parameters * size.steps * size.ranks)
    assert states["untouched"][0] == "holds"
