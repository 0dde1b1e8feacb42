"""What the test process checks of what the ranks did, claim by claim.

(a) merged statistics of gradients, weights and moments are those of the unsharded training; (b) a rank's unreduced
gradient is that of one process on the rank's batch; (c) losses and weights are bit-equal with and without the
monitor; (d) a rank outside ``module_ranks`` writes nothing and nobody hangs; (e) everything is off after ``close()``;
(f) `msmon verify` finds nothing broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import msmon_io
from msmon import verify
from msmon.merging import merge_ranks
from msmon_io import Table

from .workload import ReferenceStep

CLAIMS = "abcdef"
Rows = dict[tuple[str, int, str, int], dict[str, float]]
"""(data type, step, name, micro-step) -> statistic -> value."""


class ProofTable:
    """Engine x claim; the conftest prints it when the tests are over."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, str]] = {}

    def check(self, engine: str, claim: str, function: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Run a check and fill the cell."""
        row = self.cells.setdefault(engine, dict.fromkeys(CLAIMS, "-"))
        row[claim] = "FAILS"
        function(*arguments, **named)
        row[claim] = "ok"

    def lines(self) -> list[str]:
        """The table as text."""
        width = max(map(len, self.cells), default=0)
        head = f"{'engine':{width}}  " + "  ".join(f"{claim:5}" for claim in CLAIMS)
        return [head, *(f"{e:{width}}  " + "  ".join(f"{row[c]:5}" for c in CLAIMS) for e, row in self.cells.items())]


def statistics(tensor: torch.Tensor, eps: float = 1e-3) -> dict[str, float]:
    """The documented statistics of a tensor by torch's own operators in float64."""
    values = tensor.detach().double()
    return {
        "norm": values.norm().item(),
        "min": values.min().item(),
        "max": values.max().item(),
        "mean": values.mean().item(),
        "zeros": (tensor.detach().abs() < eps).double().mean().item(),
        "nans": float(values.isnan().sum().item()),
    }


def rows_of(tables: Iterable[Table]) -> Rows:
    """Tables as a dictionary."""
    rows: Rows = {}
    for table in tables:
        micro_steps = table.micro_steps or [0] * len(table)
        for name, micro_step, values in zip(table.names, micro_steps, table.rows(), strict=True):
            key = (table.data_type, table.step, name, micro_step)
            assert key not in rows, f"{key} is there twice"
            rows[key] = dict(zip(table.number_ops, values, strict=True))
    return rows


def rank_rows(output_dir: Path, rank: int) -> Rows:
    """What one rank wrote."""
    run_dir = msmon_io.newest_run_dirs(output_dir)[rank]
    return rows_of(table for path in sorted(run_dir.glob("*_*-*.csv")) for table in msmon_io.read_csv(path))


def run_info(output_dir: Path, rank: int) -> dict[str, Any]:
    """``run.json`` of a rank."""
    return json.loads((msmon_io.newest_run_dirs(output_dir)[rank] / "run.json").read_text())


def coverage(output_dir: Path, rank: int) -> dict[str, Any]:
    """``coverage.json`` of a rank."""
    return json.loads((msmon_io.newest_run_dirs(output_dir)[rank] / "coverage.json").read_text())


def assert_rows(
    found: Rows,
    data_type: str,
    step: int,
    expected: Mapping[str, torch.Tensor],
    *,
    micro_step: int = 0,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> None:
    """The rows of a data type at a step are those of these tensors, no more and no fewer."""
    names = {key[2] for key in found if key[0] == data_type and key[1] == step and key[3] == micro_step}
    assert names == set(expected), f"{data_type} step {step}: {sorted(names ^ set(expected))}"
    for name, tensor in expected.items():
        row = found[data_type, step, name, micro_step]
        assert row == pytest.approx(statistics(tensor), rel=rtol, abs=atol), (data_type, step, name)


def assert_reduced(found: Rows, reference: Sequence[ReferenceStep], **tolerances: float) -> None:
    """(a) for merged rows."""
    for step, expected in enumerate(reference):
        for data_type, tensors in expected.tables.items():
            assert_rows(found, data_type, step, tensors, **tolerances)


def merged_rows(output_dir: Path, destination: Path | None = None) -> Rows:
    """What all ranks wrote, joined to whole tensors."""
    report = merge_ranks(output_dir, destination)
    assert not report.incomplete
    return rank_rows(report.run_dirs[0].parent, 0)


def prove_claims(
    proof: ProofTable,
    engine: str,
    answers: Sequence[dict[str, Any]],
    folder: Path,
    reference: Sequence[ReferenceStep],
    *,
    each_micro_step: bool = False,
    **tolerances: float,
) -> None:
    """All six claims, of what `prove` wrote into ``folder``."""
    everywhere = folder / "all"
    proof.check(engine, "a", assert_reduced, merged_rows(everywhere), reference, **tolerances)
    proof.check(engine, "b", assert_unreduced, everywhere, reference, each_micro_step=each_micro_step, **tolerances)
    proof.check(engine, "c", assert_unchanged, answers)
    proof.check(engine, "d", assert_other_ranks_silent, folder / "first")
    proof.check(engine, "e", assert_all_off, answers)
    proof.check(engine, "f", assert_verified, everywhere)


def assert_verified(output_dir: Path) -> None:
    """(f)."""
    report = verify(output_dir)
    assert report.holds, report.first
    layouts = [entry.get("layout", {}) for entry in run_info(output_dir, 0)["tensors"]]
    if any("summed_over" in layout for layout in layouts):
        assert report.outcome("reductions").state == "holds", report.outcome("reductions").reason


def assert_unreduced(
    output_dir: Path, reference: Sequence[ReferenceStep], *, each_micro_step: bool = False, **tolerances: float
) -> None:
    """(b) on every rank: the gradient accumulated over the micro-steps, or after each of them."""
    for step, expected in enumerate(reference):
        for rank, micro_steps in expected.unreduced.items():
            found = rank_rows(output_dir, rank)
            chosen = list(enumerate(micro_steps)) if each_micro_step else [(0, micro_steps[-1])]
            for micro_step, tensors in chosen:
                assert_rows(found, "grad_unreduced", step, tensors, micro_step=micro_step, **tolerances)
    if len(reference[0].unreduced) > 1:
        norms = [reference[0].unreduced[rank][-1] for rank in (0, 1)]
        assert any(not torch.equal(norms[0][name], norms[1][name]) for name in norms[0]), "the ranks' batches differ"


def assert_unchanged(answers: Sequence[dict[str, Any]]) -> None:
    """(c)."""
    for rank, answer in enumerate(answers):
        for what in ("losses", "weights"):
            for how in ("with_monitor", "with_monitor_on_rank_0"):
                assert answer[f"{what}_{how}"] == answer[what], f"rank {rank}: {what} differ {how}"
    assert len(set(answers[0]["losses"])) == len(answers[0]["losses"]), "the training stands still"


def assert_other_ranks_silent(output_dir: Path) -> None:
    """(d): there is a run directory of rank 0, with rows, and none of another rank."""
    run_dirs = msmon_io.newest_run_dirs(output_dir)
    assert sorted(run_dirs) == [0]
    assert list(run_dirs[0].glob("grad_*.csv"))
    assert not list(output_dir.rglob("*rank[1-9]*"))


def assert_all_off(answers: Sequence[dict[str, Any]]) -> None:
    """(e): no hook and no patch is left, and a further step writes nothing."""
    for rank, answer in enumerate(answers):
        assert answer["hooks_during"] != answer["hooks_without"], f"rank {rank}: there was no hook to take off"
        assert answer["hooks_after"] == answer["hooks_without"], f"rank {rank}"
        assert answer["written_after_close"] == [], f"rank {rank}"
