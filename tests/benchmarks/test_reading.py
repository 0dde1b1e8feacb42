"""Time and memory of `msmon report` and `msmon diff` on a run of 5,000 tensors, 1,000 steps and 8 ranks.

Each command runs as a user starts it, in a process of its own, so that its peak memory is its own. The run lies in the
Parquet store with six statistics: 40 million rows. Without `--benchmark-enable` a run of a few tensors goes through the
same code once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from .large_run import write_large_run

#: What is aimed at, on two cores: seconds and bytes.
REPORT_SECONDS, DIFF_SECONDS, MEMORY = 60, 30, 2 * 1024**3


@attrs.frozen
class Size:
    tensors: int
    steps: int
    ranks: int
    full: bool

    def __str__(self) -> str:
        return f"{self.tensors:,} x {self.steps:,} x {self.ranks}"


@attrs.frozen
class Used:
    status: int
    seconds: float
    cpu_seconds: float
    memory: int


@pytest.fixture(scope="module")
def size(request: pytest.FixtureRequest) -> Size:
    # Enabling wins over the disabling in the project's own options, which stays set.
    if request.config.getoption("benchmark_disable") and not request.config.getoption("benchmark_enable"):
        return Size(40, 30, 2, False)
    return Size(5000, 1000, 8, True)


@pytest.fixture(scope="module")
def runs(size: Size, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Runs that differ only by their noise, by seed."""
    base = tmp_path_factory.mktemp("large")
    made: dict[int, Path] = {}

    def run(seed: int) -> Path:
        if seed not in made:
            made[seed] = write_large_run(
                base / f"seed{seed}", tensors=size.tensors, steps=size.steps, ranks=size.ranks, seed=seed
            )
        return made[seed]

    return run


def msmon(*words: object) -> Used:
    """Run the program and measure what the operating system counted for it."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "msmon", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Used(
        process.returncode, time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    )


def check(benchmark, what: str, size: Size, limit: int, call: Callable[[], Used]) -> None:
    used: list[Used] = []
    benchmark.pedantic(lambda: used.append(call()), rounds=3 if size.full else 1)
    one = sorted(used, key=lambda one: one.seconds)[len(used) // 2]
    memory = max(one.memory for one in used)
    benchmark.extra_info.update(attrs.asdict(one))
    print(
        f"\n{what} at {size}: {one.seconds:.1f} s (aim {limit} s), processor {one.cpu_seconds:.1f} s, "
        f"memory {memory / 1024**2:.0f} MiB (aim {MEMORY / 1024**2:.0f} MiB)"
    )
    if size.full:
        assert memory <= MEMORY
        assert one.seconds <= limit


def test_report(benchmark, runs: Callable[[int], Path], size: Size, tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    def report() -> Used:
        used = msmon("report", runs(0), "-o", page)
        assert used.status == 0
        return used

    runs(0)
    check(benchmark, "report", size, REPORT_SECONDS, report)
    assert page.stat().st_size <= 10_000_000
    print(f"the page: {page.stat().st_size / 1e6:.2f} MB")


@pytest.mark.parametrize("seed", [0, 1], ids=["identical", "all-values-different"])
def test_diff(benchmark, runs: Callable[[int], Path], size: Size, tmp_path: Path, seed: int) -> None:
    def diff() -> Used:
        used = msmon("diff", runs(0), runs(seed))
        assert used.status == (1 if seed else 0)
        return used

    runs(0), runs(seed)
    check(benchmark, f"diff ({'all values different' if seed else 'identical'})", size, DIFF_SECONDS, diff)


def test_diff_of_shards(benchmark, size: Size, tmp_path: Path) -> None:
    """Of other ranks, from stored partials: a tenth of the steps, since writing them takes long."""
    runs = [
        write_large_run(
            tmp_path / f"{ranks}", tensors=size.tensors, steps=size.steps // 10, ranks=ranks, data_type="grad_reduced"
        )
        for ranks in (size.ranks, size.ranks // 2)
    ]

    def diff() -> Used:
        used = msmon("diff", *runs)
        assert used.status == 1
        return used

    check(benchmark, "diff of shards on other ranks, a tenth of the steps", size, DIFF_SECONDS, diff)


def test_diff_page(benchmark, runs: Callable[[int], Path], size: Size, tmp_path: Path) -> None:
    def diff() -> Used:
        used = msmon("diff", runs(0), runs(1), "-o", tmp_path / "diff.html")
        assert used.status == 1
        return used

    runs(0), runs(1)
    check(benchmark, "diff -o", size, REPORT_SECONDS, diff)
    assert (tmp_path / "diff.html").stat().st_size <= 10_000_000


def test_show(benchmark, runs: Callable[[int], Path], size: Size) -> None:
    def show() -> Used:
        used = msmon("show", runs(0))
        assert used.status == 0
        return used

    runs(0)
    check(benchmark, "show", size, REPORT_SECONDS, show)
