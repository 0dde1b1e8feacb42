"""What a monitored step costs more, as a ratio, and in memory.

``make bench ARGS="-k overhead"`` prints the table. Each row is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of the tool that msmon replaces, and what is asked of msmon; text, measured elsewhere.
ROWS = {
    "wg": ("weight gradients (wg_distribution)", "2.15", "1.05"),
    "param": ("weights before and after (param_distribution)", "1.70", "1.06"),
    "mv": ("moments (mv_distribution)", "1.95", "1.06"),
    "xy": ("activations and their gradients (xy_distribution, all_xy)", "2.86", "1.12"),
    "all": ("all four", "5.15", "1.25"),
}
SMALL = ["--steps", "3", "--layers", "1", "--width", "64"]


def child(task: str, *options: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.overhead", task, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def table():
    """Collects the figures of this run and prints them at its end."""
    rows: dict[str, dict[str, float]] = {}
    yield rows
    if not rows:
        return
    plain = child("none")
    title = "27.4 M parameter GPT, fp32, 512 tokens"
    print(f"\n\n{title:58} {'msmon':>7} {'peer':>5}  target  {'step':>7} {'MB more':>8}")
    for task, (text, peer, target) in ROWS.items():
        if task in rows:
            row = rows[task]
            more = row["late_mb"] - plain["late_mb"]
            print(f"{text:58} {row['ratio']:7.3f} {peer:>5}  {target:>6}  {row['step_s']:6.3f}s {more:8.0f}")
    growth = ", ".join(f"{task} {row['late_mb'] - row['early_mb']:+.0f} MB" for task, row in rows.items())
    print(f"resident memory, last third of the steps over the second: {growth}")


@pytest.mark.parametrize("task", ROWS)
def test_overhead(task, benchmark, table):
    if benchmark.disabled and task != "all":
        pytest.skip("one task is enough to see that it runs")
    found = benchmark.pedantic(child, args=(task, *(SMALL if benchmark.disabled else ())), rounds=1)
    benchmark.extra_info.update(found)
    assert found["ratio"] > 1
    if not benchmark.disabled:
        table[task] = found
