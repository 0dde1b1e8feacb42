"""Dynamic mode with two ranks: the file is edited while the engine trains, and both ranks collect the same steps."""

import json

import pytest

import msmon_io

from .dynamic_start import COLLECTED, STEPS
from .proof import Rows, coverage, rank_rows, rows_of

VARIANTS = {
    "ddp": {"engine": "ddp", "grad_acc_steps": 2},
    "ddp compiled": {"engine": "compiled"},
    "fsdp1": {"engine": "fsdp1", "grad_acc_steps": 2},
    "fsdp2": {"engine": "fsdp2"},
    "fsdp2 gradient sync off": {"engine": "fsdp2", "grad_acc_steps": 2, "reshard": False},
    "zero 0": {"engine": "deepspeed_zero", "stage": 0, "grad_acc_steps": 2},
    "zero 1": {"engine": "deepspeed_zero", "stage": 1, "given": "inner"},
    "zero 2": {"engine": "deepspeed_zero", "stage": 2, "grad_acc_steps": 2, "zero": {"overlap_comm": True}},
    "zero 3": {"engine": "deepspeed_zero", "stage": 3, "grad_acc_steps": 2},
}
OVERLAP = {"grad_acc_steps": 2, "sync_last": True, "overlap_grad_reduce": True, "bucket_size": 100}
MEGATRON = {"megatron": OVERLAP, "megatron distributed optimizer": {**OVERLAP, "split": True}}
DATA_TYPES = {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "param_origin", "param_updated"}


def periods_of(folder, rank) -> list[tuple[dict, Rows]]:
    """The coverage and the rows of each run directory, in the order of their steps."""
    found = []
    for run_dir in folder.glob(f"*-rank{rank}-*"):
        rows = rows_of(table for path in run_dir.glob("*_*-*.csv") for table in msmon_io.read_csv(path))
        found.append((json.loads((run_dir / "coverage.json").read_text()), rows))
    return sorted(found, key=lambda one: min((step for _, step, *_ in one[1]), default=-1))


@pytest.mark.parametrize("name", VARIANTS)
def test_start_stop_and_start_again(ranks, tmp_path, name):
    check(ranks.run("dynamic_start", "started_later", output=str(tmp_path), **VARIANTS[name]), tmp_path)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron(megatron_ranks, tmp_path, name):
    further = {"engine": "megatron_core", **MEGATRON[name]}
    check(megatron_ranks.run("dynamic_start", "started_later", output=str(tmp_path), **further), tmp_path)


def check(answers, tmp_path):
    for rank, answer in enumerate(answers):
        assert answer["losses_dynamic"] == answer["losses"]
        assert answer["weights_dynamic"] == answer["weights"]
        assert len(set(answer["losses"])) == STEPS, "the training stands still"

        # Between the periods only the optimizer's step is noticed, as before the first one.
        idle = answer["hooks"][0]
        assert {name for name in idle if idle[name] != answer["hooks_without"][name]} <= {
            "_optimizer_step_pre_hooks",
            "_optimizer_step_post_hooks",
            "methods",
        }
        collecting = [after != idle for after in answer["hooks"]]
        # The hooks are there from the end of the step before the first one to the end of the last one.
        assert [step for step, on in enumerate(collecting) if on] == [4, 5, 6, 9, 10, 11]
        assert answer["hooks_after"] == answer["hooks_without"]

        # Row by row what a monitor writes that was there from the first step on.
        static = rank_rows(tmp_path / "static", rank)
        periods = periods_of(tmp_path / "dynamic", rank)
        assert [sorted({step for _, step, *_ in rows}) for _, rows in periods] == COLLECTED
        for (covered, rows), steps in zip(periods, COLLECTED, strict=True):
            expected = {key: row for key, row in static.items() if key[1] in steps}
            assert {data_type for data_type, *_ in expected} >= DATA_TYPES
            assert set(rows) == set(expected)
            assert all(row[op] == expected[key][op] for key, row in rows.items() for op in row)
            assert covered["missing"] == coverage(tmp_path / "static", rank)["missing"]
        assert set(periods[1][1].popitem()[1]) == {"max", "norm"}
        assert answer["left_beside"] == ["config.json", "dynamic", "static"]
    # The second period has ended by itself.
    assert json.loads((tmp_path / "config.json").read_text())["dynamic_on"] is False
